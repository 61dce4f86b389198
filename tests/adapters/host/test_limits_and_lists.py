"""Choosing among limits, and reading the kernel's lists of CPUs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.adapters.host.cgroup import Level, tightest
from loadmanager.adapters.host.reading import Unreadable, count_cpus


@given(limits=st.lists(st.none() | st.floats(0.1, 64.0), max_size=6), ceiling=st.floats(0.1, 64.0))
def test_no_ancestor_is_tighter_than_the_chosen_group(
    limits: list[float | None], ceiling: float
) -> None:
    levels = [Level(Path(f"/{n}"), limit) for n, limit in enumerate(limits)]
    chosen = tightest(levels, ceiling)
    known = [limit for limit in limits if limit is not None and limit < ceiling]
    assert (chosen.limit if chosen else None) == min(known, default=None)
    if chosen is not None:
        outer = limits[levels.index(chosen) + 1 :]
        assert chosen.limit not in outer


@given(cpus=st.sets(st.integers(0, 300), min_size=1))
def test_every_cpu_of_a_list_is_counted(cpus: set[int]) -> None:
    ranges: list[list[int]] = []
    for cpu in sorted(cpus):
        if ranges and ranges[-1][1] == cpu - 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    text = ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    assert count_cpus(text, Path("/cpus")) == len(cpus)


def test_an_empty_list_of_cpus_limits_nothing_and_nonsense_is_told() -> None:
    assert count_cpus("", Path("/cpus")) is None
    with pytest.raises(Unreadable, match="/cpus: 'x' is no whole number"):
        count_cpus("0-x", Path("/cpus"))
