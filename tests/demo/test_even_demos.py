"""The demo's traffic is even soon after its first move, whatever its seed."""

import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import pytest
from whole_demo import run_demo

from loadmanager.adapters.history.storage import Disk

pytestmark = [pytest.mark.processes, pytest.mark.thorough, pytest.mark.timeout(500)]

WINDOW_S: Final = 10
EVEN_WITHIN_S: Final = 40
EVEN: Final = 1.15


@pytest.mark.parametrize("seed", range(1, 6))
def test_brokers_are_even_within_40_s_of_the_first_move_and_stay_so(
    tmp_path: Path, seed: int
) -> None:
    history = tmp_path / "history"
    options = ("--duration", "90", "--seed", str(seed), "--history", str(history))
    summary = run_demo(tmp_path / "data", *options)
    packed = (file.path.read_bytes() for file in Disk().find(history))
    lines = [json.loads(line) for one in packed for line in gzip.decompress(one).splitlines()]
    ratios = max_over_mean(lines)
    first_s = min(line["at_ms"] for line in lines if line["kind"] == "move") // 1000
    late = {at_s - first_s: one for at_s, one in ratios.items() if at_s > first_s + EVEN_WITHIN_S}
    assert len(late) >= 10, (first_s, summary)
    assert {at_s: one for at_s, one in late.items() if one > EVEN} == {}, summary


def max_over_mean(lines: list[dict[str, Any]]) -> dict[int, float]:
    """Return the fullest broker's messages/s over their mean, for each second, over 10 s."""
    rates: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "report":
            rate = line["msgs_in_per_s"] + line["msgs_out_per_s"]
            rates[line["broker"]].append((line["reported_at_ms"] / 1000, rate))
    for each in rates.values():
        each.sort()
    begin_s = max(each[0][0] for each in rates.values())
    end_s = min(each[-1][0] for each in rates.values())
    found = {}
    for at_s in range(int(begin_s) + WINDOW_S + 1, int(end_s) + 1):
        span = range(at_s - WINDOW_S + 1, at_s + 1)
        means = [fmean(_in_force(each, one_s) for one_s in span) for each in rates.values()]
        found[at_s] = max(means) / fmean(means)
    return found


def _in_force(rates: list[tuple[float, float]], at_s: float) -> float:
    """Return the rate of the report whose window ends next, as far as there is one."""
    row = bisect_right(rates, (at_s, -1.0))
    return rates[min(row, len(rates) - 1)][1]
