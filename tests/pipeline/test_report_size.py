"""A report does not grow with the cluster: every part has at most so many rows."""

import numpy as np
import small_report
from small_report import HOUR_MS, MONDAY_MS, bundle

from loadmanager.charts import page
from loadmanager.pipeline.reporting import balance, move_results
from loadmanager.pipeline.reporting.job import report_page

DRAWN = np.random.default_rng(1)
PLAIN_BYTES = len(page("empty"))
"""Almost all of it is plotly.js."""


def test_the_largest_map_and_the_most_moves_that_are_drawn_are_small() -> None:
    hours = balance.POINTS // 2
    loads = balance.LoadMap(
        hours_ms=[MONDAY_MS + hour * HOUR_MS for hour in range(hours)],
        brokers=[f"broker-{at}.a-long-name.example.org:8080" for at in range(balance.BROKERS)],
        loads=[DRAWN.random(hours).tolist() for _ in range(balance.BROKERS)],
        all_brokers=1000,
    )
    points = [
        {
            "at_ms": MONDAY_MS + at * HOUR_MS,
            **{name: float(DRAWN.random()) for name in ("mean", "highest", "lowest")},
        }
        for at in range(balance.POINTS)
    ]
    days = [
        {
            "day": f"day {at}", "minutes": 1440,
            **dict.fromkeys(("mean", "highest", "max_over_mean", "max_over_mean_p95", "uneven",
                             "msgs_per_s"), float(DRAWN.random())),
        }
        for at in range(62)
    ]  # fmt: skip
    sample = [
        {
            "bundle": bundle(at % 200), "source": f"broker-{at}:8080", "target": f"b-{at * 7}:80",
            "cause": "overloaded", "verdict": "helped",
            "spread_expected": float(DRAWN.random()), "spread_after": float(DRAWN.random()),
        }
        for at in range(move_results.SAMPLE)
    ]  # fmt: skip
    parts = [
        balance.show(
            balance.Balance(measure="score", step_ms=1, points=points, days=days, map=loads)
        ),
        move_results.show(move_results.MoveResults(facts={}, summary=[SUMMARY], sample=sample)),
    ]
    assert len(report_page({"large": parts})) < PLAIN_BYTES + 300_000


SUMMARY = {
    "cause": "overloaded", "shedder": "S", "placement": "P",
    **dict.fromkeys(("moves", "judged", "helped", "no_difference", "hurt", "returns",
                     "connections"), 10**6),
    **dict.fromkeys(("helped_fraction", "gain_mean", "pause_p50_s", "pause_p95_s", "pause_s",
                     "messages_delayed"), 0.1),
}  # fmt: skip


def test_a_report_of_a_small_cluster_is_little_more_than_its_library_and_the_same_each_time() -> (
    None
):
    told = report_page({"small": small_report.every_part()})
    assert len(told) < PLAIN_BYTES + 150_000
    assert told == report_page({"small": small_report.every_part()})
    assert "No broker reported anything" in report_page({})
