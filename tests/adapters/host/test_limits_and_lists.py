"""Choosing among limits, also of open files, and reading the kernel's lists of CPUs."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from loadmanager.adapters.host.processes import (
    Level,
    Unreadable,
    allow_connections,
    count_cpus,
    tightest,
)


@given(limits=st.lists(st.none() | st.floats(0.1, 64.0), max_size=6), ceiling=st.floats(0.1, 64.0))
def test_no_ancestor_is_tighter_than_the_group(limits: list[float | None], ceiling: float) -> None:
    levels = [Level(Path(f"/{n}"), limit) for n, limit in enumerate(limits)]
    chosen = tightest(levels, ceiling)
    known = [limit for limit in limits if limit is not None and limit < ceiling]
    assert (chosen.limit if chosen else None) == min(known, default=None)
    if chosen is not None:
        outer = limits[levels.index(chosen) + 1 :]
        assert chosen.limit not in outer


def test_an_empty_list_of_cpus_limits_nothing_and_nonsense_is_told() -> None:
    assert count_cpus("", Path("/cpus")) is None
    with pytest.raises(Unreadable, match="/cpus: 'x' is no whole number"):
        count_cpus("0-x", Path("/cpus"))


def after(soft: int, hard: int, most: int) -> tuple[int, list[str]]:
    now = (soft, hard)

    def set_limits(limits: tuple[int, int]) -> None:
        nonlocal now
        now = limits

    with capture_logs() as logs:
        allow_connections(most, limits=lambda: now, set_limits=set_limits)
    assert now[1] == hard
    return now[0], [f"{one['event']} {one.get('fits', '')}".strip() for one in logs]


def test_the_soft_limit_is_raised() -> None:
    most = resource.RLIM_INFINITY
    for soft, hard, raised in ((8_192, 8_192, 8_192), (most,) * 3, (1_024, most, 4_352)):
        assert after(soft, hard, most=4_096) == (raised, [])
    assert after(1_024, 4_352, most=4_096) == (4_352, [])
    assert after(1_024, 4_096, most=4_096) == (4_096, ["http.open_files.too_few 3840"])
    assert after(128, 128, most=4_096) == (128, ["http.open_files.too_few 1"])


def test_a_limit_that_may_not_be_raised_is_a_warning_that_says_what_fits() -> None:
    def refuse(_limits: tuple[int, int]) -> None:
        raise PermissionError("not here")

    with capture_logs() as logs:
        allow_connections(4_096, limits=lambda: (1_024, 8_192), set_limits=refuse)
    assert [e["event"] for e in logs] == ["http.open_files.not_raised", "http.open_files.too_few"]
    assert logs[1]["key"] == "[http] max_connections"
    assert (logs[1]["limit"], logs[1]["fits"]) == (1_024, 768)


def test_a_real_process_raises_its_own_limit() -> None:
    program = (
        "import resource as r\n"
        "from loadmanager.adapters.host.processes import allow_connections\n"
        "r.setrlimit(r.RLIMIT_NOFILE, (300, 700))\n"
        "allow_connections(400)\n"
        "print(r.getrlimit(r.RLIMIT_NOFILE))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stdout == "(656, 700)\n"
