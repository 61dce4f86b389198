"""What the report concludes of rows as the tables have them, of days, and of trends."""

from datetime import date, timedelta
from typing import Any

import numpy as np
import pytest
import small_report
from numpy.typing import NDArray
from small_report import HOUR_MS, MONDAY_MS

from loadmanager.charts import page
from loadmanager.core.splitting.finder import SplitRules
from loadmanager.pipeline.reporting import loads, moves
from loadmanager.pipeline.reporting.capacity import CAPACITY, HORIZON_DAYS, SHORT, trend
from loadmanager.pipeline.reporting.formats import UNKNOWN, many, percent, plain, scaled, span
from loadmanager.pipeline.reporting.job import report_page, too_short
from loadmanager.pipeline.reporting.loads import BALANCE, DISTANCE
from loadmanager.pipeline.reporting.parts import Finding, Part, Weight, next_steps
from loadmanager.pipeline.reporting.shapes import judged, to_merge, to_split
from loadmanager.pipeline.reporting.sources import believed_days

RULES = SplitRules()


def bundle(low: int, high: int, *, share: float = 0.001, **more: Any) -> dict[str, Any]:
    rates = dict.fromkeys(small_report.RATES[:4], 1.0)
    return small_report.sized(f"t/n/0x{low:08x}_0x{high:08x}", share, **{**rates, **more})


def test_a_short_history_gives_nothing_to_act_on() -> None:
    findings = [Finding(Weight.ACT, "The cluster is uneven."), Finding(Weight.FINE, "Fine.")]
    told = too_short(Part(title="Balance", body=[], findings=findings), 47.0).findings
    assert told == [
        Finding(Weight.LOOK, "The cluster is uneven (in 47 s; advice needs 4.0 h of history)."),
        findings[1],
    ]


def concluded(**changed: Any) -> list[str]:
    """Return what is concluded of a total with some other figures, after its weight."""
    found = small_report.distance()
    shown = DISTANCE.show({**found, "total": {**found["total"], **changed}})
    return [f"{one.weight.name} {one.text}" for one in shown.findings]


def test_a_gap_is_judged_by_its_mean_and_by_what_policies_hold() -> None:
    look = (
        "LOOK The fullest broker used 50.0 % on average, where 40.0 % was possible: a mean gap "
        "of 25 %"
    )
    assert concluded()[0] == f"{look}."
    assert concluded(gap_within_policies=0.05)[0] == (
        f"{look}, of which isolation policies and drains hold 20 %."
    )
    assert concluded(gap=0.5)[0].startswith("ACT The cluster was far from the best possible. ")
    assert concluded(gap=0.1)[0].startswith("FINE The fullest broker used")
    quiet = concluded(bound=0.02, gap=2.0)[0]
    assert quiet.startswith("FINE The cluster has too little load to be uneven. ")


def test_a_strategy_that_would_have_been_closer_is_named_with_its_moves() -> None:
    assert concluded()[1] == (
        "LOOK JointShedder would have been closer to the best: a mean gap of 5 % where "
        "the cluster's was 25 %, with 1,310 moves instead of 960."
    )
    found = small_report.distance()
    shadow = {**found["shadows"][0], "regret": 0.04}
    none = DISTANCE.show({**found, "shadows": [shadow]})
    assert none.findings[1] == Finding(
        Weight.FINE, "No strategy beside would have been closer to the best by more than 5 %."
    )


def test_without_data_the_part_says_so_and_draws_nothing() -> None:
    empty = DISTANCE.show({"total": None})
    assert "No leader recorded how far the cluster was" in empty.html("x")
    assert (len(empty.body), empty.findings) == (1, ())
    alone = DISTANCE.show({**small_report.distance(), "shadows": [], "regrets": []})
    text = alone.html("x")
    assert "[shedding] shadows names them" in text
    assert text.count('class="plot"') == 1
    assert "<table" not in text
    assert len(alone.findings) == 1


@pytest.mark.parametrize(
    ("given", "brokers", "why", "hint"),
    [
        (bundle(0, 1, msgs_in_per_s=31_000.0), 10, "31001 messages/s", "is a single position"),
        (bundle(1, 9, topics=1001), 10, "1001 topics", ""),
        (bundle(2, 9), 10, None, ""),
        (bundle(0, 10, share=0.051), 10, "51 % of a broker's mean traffic", ""),
        (bundle(0, 10, share=0.049), 10, None, ""),
        (bundle(0, 10, share=1.0), 1, None, ""),
        (
            bundle(0, 10, share=0.5, topics=1),
            10,
            "500 % of a broker's mean traffic",
            "has 1 topic: partition the topic instead",
        ),
        (
            {**bundle(0, 10, share=0.5), "bundle": "t/n/whole"},
            10,
            "500 % of a broker's mean traffic",
            "is a single position: it cannot be cut",
        ),
    ],
)
def test_what_exceeds_a_limit_or_half_a_broker_is_to_be_split(
    given: dict[str, Any], brokers: int, why: str | None, hint: str
) -> None:
    rows = to_split([given], brokers, RULES)
    assert [row["why"] for row in rows] == ([why] if why else [])
    assert all(row["hint"].startswith(hint) for row in rows)
    largest = bundle(20, 29, share=2.0, topics=2000)
    assert to_split([given, largest], brokers, RULES)[0]["bundle"] == largest["bundle"]


def test_small_neighbours_are_merged_in_pairs() -> None:
    rows = [bundle(at, at + 10) for at in (20, 0, 10, 40)]
    found = to_merge(rows, 2, RULES, {"t/n": 10})
    assert [row["whole"] for row in found] == ["t/n/0x00000000_0x00000014"]
    assert (found[0]["topics"], found[0]["same_broker"]) == (8, True)


FOUR = [bundle(at, at + 10) for at in (0, 10, 20, 30)]
ODD = {**bundle(0, 10), "bundle": "t/n/whole"}


@pytest.mark.parametrize(
    ("rows", "brokers", "bundles", "merged"),
    [
        pytest.param(FOUR, 4, 4, 0, id="a bundle for each broker"),
        pytest.param(FOUR, 3, 4, 1, id="one more than brokers"),
        pytest.param(FOUR, 1, 4, 2, id="many more"),
        pytest.param([{**one, "topics": 600} for one in FOUR[:2]], 1, 10, 0, id="to be cut again"),
        pytest.param([ODD, bundle(10, 20)], 1, 10, 0, id="a name that is no bundle"),
    ],
)
def test_a_namespace_keeps_bundles_for_its_brokers_and_what_would_be_cut_again(
    rows: list[dict[str, Any]], brokers: int, bundles: int, merged: int
) -> None:
    assert len(to_merge(rows, brokers, RULES, {"t/n": bundles})) == merged


def namespace(bundles: int, share: float, largest: float) -> dict[str, Any]:
    return {
        "namespace": "t/n", "bundles": bundles, "share": share, "largest_share": largest,
        "largest_bundle": "b", "brokers": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("bundles", "share", "largest", "why", "wanted"),
    [
        (64, 1.0, 0.02, "", 128),
        (4, 0.5, 0.02, "4 bundles for traffic of 5 brokers", 64),
        (64, 0.5, 0.08, "its largest bundle is 80 % of a broker's mean traffic", 64),
        (2, 0.05, 0.04, "", 8),
        (1, 0.05, 0.04, "1 bundle for traffic of 1 broker", 8),
        (200, 1.0, 0.01, "", 200),
    ],
)
def test_a_namespace_has_too_few_bundles_for_its_traffic(
    bundles: int, share: float, largest: float, why: str, wanted: int
) -> None:
    row = judged(namespace(bundles, share, largest), brokers=10)
    assert (row["why"], row["wanted"]) == (why, wanted)
    assert judged(namespace(1, 1.0, 1.0), brokers=1)["why"] == ""


def test_what_matters_most_is_told_first_and_the_rest_left_out() -> None:
    findings = [Finding(Weight.FINE, f"fine {at}") for at in range(4)]
    findings += [Finding(Weight.ACT, "act"), Finding(Weight.LOOK, "<look>")]
    findings += [Finding(Weight.LACKING, "lacking")]
    told = next_steps(findings, most=3)
    assert told.index("act") < told.index("&lt;look&gt;") < told.index("fine 0")
    assert "fine 1" not in told
    assert "lacking" not in told
    assert "too little history" in next_steps([])


def test_numbers_are_told_with_their_units() -> None:
    assert [plain(1234.5), plain(0.01234), plain(0.0), plain(None)] == [
        "1,234", "0.0123", "0", UNKNOWN,
    ]  # fmt: skip
    assert [scaled(1.5e6, "B/s"), scaled(12.0, "/s")] == ["1.50 M B/s", "12.0 /s"]
    assert [percent(0.123), percent(0.123, 1), percent(float("nan"))] == ["12 %", "12.3 %", UNKNOWN]
    spans = [span(seconds) for seconds in (90, 7200, 3 * 86400, 0.258)]
    assert spans == ["90 s", "2.0 h", "3.0 days", "0.26 s"]
    assert [many(1, "move"), many(1200, "move")] == ["1 move", "1,200 moves"]


def capacity_told(days: int, level: float, slope: float, noise: float = 0.0) -> Finding:
    hours = np.arange(24 * days)
    drawn = np.repeat(np.random.default_rng(5).normal(0.0, noise, days), 24)
    loads = level + 0.05 * np.sin(hours / 24 * 2 * np.pi) + slope * hours / 24 + drawn
    found = {"resource": "cpu", "hours_ms": hours * 3_600_000, "loads": loads, "brokers": 3}
    return CAPACITY.show(found).findings[0]


@pytest.mark.parametrize(
    ("days", "level", "slope", "weight", "told"),
    [
        (28, 0.3, 0.005, Weight.LOOK, "Capacity is short in about 72 days"),
        (28, 0.6, 0.005, Weight.ACT, "Capacity is short in about 12 days"),
        (28, 0.9, 0.0, Weight.ACT, "Capacity is short now"),
        (28, 0.3, -0.001, Weight.FINE, "Capacity lasts for at least 365 days"),
        (5, 0.3, -0.001, Weight.FINE, "No growth is to be seen yet"),
        (2, 0.3, 0.005, Weight.LACKING, "There are 2.0 days of history; a forecast"),
    ],
)
def test_capacity_is_predicted_as_far_as_history_allows(
    days: int, level: float, slope: float, weight: Weight, told: str
) -> None:
    found = capacity_told(days, level, slope)
    assert found.text.startswith(told)
    assert found.weight is weight
    assert ("weekdays look like a trend" in found.text) == (days == 5)


def test_a_trend_that_may_be_chance_is_told_as_such() -> None:
    found = capacity_told(28, 0.5, 0.0005, noise=0.05)
    assert found.text.startswith("There is no certain trend")
    assert found.weight is Weight.FINE


def days(*numbers: int) -> list[date]:
    return [date(2026, 1, 1) + timedelta(days=number) for number in numbers]


def told(several: list[int], alone: list[int]) -> tuple[date, date] | None:
    return believed_days(dict.fromkeys(days(*several), True) | dict.fromkeys(days(*alone), False))


@pytest.mark.parametrize(
    ("several", "alone", "believed"),
    [
        pytest.param([0, 1, 2], [27_000, -20_000], (0, 2), id="one clock far ahead, one behind"),
        pytest.param([5, 6], [1, 2, 3, 4, 7, 8, 10], (1, 10), id="before others and after them"),
        pytest.param([0, 60], [30], (0, 60), id="weeks of silence"),
        pytest.param([], [0, 27_000], None, id="the only broker"),
        pytest.param([], [], None, id="nothing"),
    ],
)
def test_days_are_believed_by_who_tells_of_them(
    several: list[int], alone: list[int], believed: tuple[int, int] | None
) -> None:
    assert told(several, alone) == (believed and tuple(days(*believed)))


def course(days: float, slope: float) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return hours and loads of a daily rhythm between 0.2 and 0.4, weekends half, growing."""
    hours = np.arange(round(days * 24), dtype=np.int64)
    rhythm = 0.3 + 0.1 * np.sin(hours / 24 * 2 * np.pi)
    weekend = np.where((hours // 24) % 7 >= 5, 0.5, 1.0)
    return hours, rhythm * weekend + slope * hours / 24


@pytest.mark.parametrize(
    ("days", "slope", "more", "period_h", "left"),
    [
        # The rhythm's highest hours are at 0.4; after 28 days all is 0.14 higher.
        pytest.param(28, 0.005, 0.0, 168, (SHORT - 0.54) / 0.005, id="under the week's rhythm"),
        pytest.param(19, 0.0, 0.0, 168, None, id="a weekend is no falling trend"),
        pytest.param(4, 0.01, 0.0, 24, (SHORT - 0.44) / 0.01, id="by the hour of the day"),
        pytest.param(28, 0.0, 0.5, 168, 0.0, id="full"),
        pytest.param(28, 0.1 / HORIZON_DAYS, 0.0, 168, None, id="beyond the horizon"),
    ],
)
def test_a_trend_is_found_with_the_days_that_are_left(
    days: float, slope: float, more: float, period_h: int, left: float | None
) -> None:
    hours, values = course(days, slope)
    found = trend(hours, values + more)
    assert found is not None
    assert found.period_h == period_h
    assert found.slope_per_day == pytest.approx(slope, abs=1e-9)
    assert found.slope_low - 1e-9 <= slope <= found.slope_high + 1e-9
    assert found.peak == pytest.approx(0.4 + more + slope * days, abs=0.01)
    assert (found.days_left is None) == (left is None)
    assert (found.days_left or 0.0) == pytest.approx(left or 0.0, abs=2.0)
    if found.days_left:
        assert found.days_left == pytest.approx((SHORT - found.peak) / slope)


def test_the_interval_covers_the_true_slope_as_often_as_it_says() -> None:
    inside = 0
    for seed in range(200):
        hours, values = course(28, 0.002)
        days = np.repeat(np.random.default_rng(seed).normal(0.0, 0.02, 28), 24)
        found = trend(hours, values + days)
        assert found is not None
        inside += found.slope_low <= 0.002 <= found.slope_high
    # 90 % and a little more or less: weeks take some of the freedom that is counted on.
    assert 150 <= inside <= 196


def test_missing_hours_are_left_out_and_too_few_have_no_trend() -> None:
    hours, values = course(28, 0.005)
    kept = np.random.default_rng(3).random(len(hours)) > 0.3
    found = trend(hours[kept], values[kept])
    assert found is not None
    assert found.slope_per_day == pytest.approx(0.005, rel=0.02)
    assert trend(*course(2, 0.01)) is None
    assert trend(np.zeros(0, dtype=np.int64), np.zeros(0)) is None


DRAWN = np.random.default_rng(1)
PLAIN_BYTES = len(page("empty"))
"""Almost all of it is plotly.js."""


def test_the_largest_map_and_the_most_moves_that_are_drawn_are_small() -> None:
    hours, brokers = loads.POINTS // 2, range(loads.BROKERS)
    drawn = {
        "hours_ms": [MONDAY_MS + hour * HOUR_MS for hour in range(hours)],
        "brokers": [f"broker-{at}.a-long-name.example.org:8080" for at in brokers],
        "loads": [DRAWN.random(hours).tolist() for _ in brokers],
        "all_brokers": 1000,
    }
    points = [
        {
            "at_ms": MONDAY_MS + at * HOUR_MS,
            **{name: float(DRAWN.random()) for name in ("mean", "highest", "lowest")},
        }
        for at in range(loads.POINTS)
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
            "bundle": small_report.bundle(at % 200), "source": f"broker-{at}:8080",
            "target": f"b-{at * 7}:80", "cause": "overloaded", "verdict": "helped",
            "spread_expected": float(DRAWN.random()), "spread_after": float(DRAWN.random()),
        }
        for at in range(moves.SAMPLE)
    ]  # fmt: skip
    lines = {"measure": "score", "step_ms": 1, "points": points, "days": days, "moves": {}}
    others: dict[str, list[Any]] = {key: [] for key in ("worst", "returned", "reasons", "pauses")}
    parts = [
        BALANCE.show({**lines, "map": drawn}),
        moves.MOVES.show({"facts": {}, "summary": [SUMMARY], "sample": sample, **others}),
    ]
    assert len(report_page({"large": parts})) < PLAIN_BYTES + 300_000


SUMMARY = {
    "cause": "overloaded", "shedder": "S", "placement": "P",
    **dict.fromkeys(("moves", "judged", "helped", "no_difference", "hurt", "returns",
                     "connections"), 10**6),
    **dict.fromkeys(("helped_fraction", "gain_mean", "pause_p50_s", "pause_p95_s", "pause_s",
                     "messages_delayed"), 0.1),
}  # fmt: skip


def test_a_report_of_a_small_cluster_is_small_and_the_same_each_time() -> None:
    told = report_page({"small": small_report.every_part()})
    assert len(told) < PLAIN_BYTES + 150_000
    assert told == report_page({"small": small_report.every_part()})
    assert "No broker reported anything" in report_page({})
