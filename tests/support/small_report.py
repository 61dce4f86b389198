"""A report of a cluster that never was: every part, without Spark."""

import math
from pathlib import Path
from typing import Any, Final

import numpy as np

from loadmanager.core.splitting.finder import SplitRules
from loadmanager.pipeline.replay.judging import Advice, Level, Verdict
from loadmanager.pipeline.reporting import shapes
from loadmanager.pipeline.reporting.capacity import CAPACITY
from loadmanager.pipeline.reporting.cost_parts import QUALITY, SPEEDS
from loadmanager.pipeline.reporting.job import report_page
from loadmanager.pipeline.reporting.loads import BALANCE, DISTANCE, HOTTEST
from loadmanager.pipeline.reporting.moves import MOVES
from loadmanager.pipeline.reporting.parts import Part, lacking
from loadmanager.pipeline.reporting.runs import INTAKE, REPLAYED

EVIL: Final = "shop/<script>alert(1)</script>"
"""A name that history could hold; it is to be shown, and nothing else."""

MONDAY_MS: Final = 1_767_571_200_000
HOUR_MS: Final = 3_600_000
RATES: Final = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s", "topics",
                "connections")  # fmt: skip


def bundle(number: int, namespace: str = "shop/orders") -> str:
    return f"{namespace}/0x{number << 24:08x}_0x{(number + 1) << 24:08x}"


def daily(hour: float) -> float:
    """Return the rhythm of a day, between 0.6 and 1.4."""
    return 1.0 + 0.4 * math.sin(hour / 24 * 2 * math.pi)


def balance_part() -> Part:
    points = [
        {
            "at_ms": MONDAY_MS + at * HOUR_MS // 2,
            "mean": 0.4 * daily(at / 2),
            "highest": 0.5 * daily(at / 2) + 0.02 * (at % 3),
            "lowest": 0.3 * daily(at / 2),
            "max_over_mean": 1.25,
            "std_over_mean": 0.1,
        }
        for at in range(144)
    ]
    days = [
        {
            "day": f"2026-01-0{5 + at}", "minutes": 1440, "mean": 0.4, "highest": 0.72,
            "max_over_mean": 1.45 - 0.02 * at, "max_over_mean_p95": 1.6, "uneven": 0.8,
            "msgs_per_s": 120_000.0,
        }
        for at in range(3)
    ]  # fmt: skip
    brokers = [f"broker-{number}:8080" for number in range(6)]
    loads = [
        [None if place == 2 and 30 < hour < 34 else (0.3 + 0.06 * place) * daily(hour)
         for hour in range(72)]
        for place in range(6)
    ]  # fmt: skip
    found = {
        "measure": "score",
        "step_ms": HOUR_MS // 2,
        "points": points,
        "days": days,
        "map": {
            "hours_ms": [MONDAY_MS + hour * HOUR_MS for hour in range(72)],
            "brokers": brokers,
            "loads": loads,
            "all_brokers": 6,
        },
        "moves": {MONDAY_MS + at * HOUR_MS // 2: at % 5 for at in range(144)},
    }
    return BALANCE.show(found)


def distance() -> dict[str, Any]:
    def use(at: int) -> float:
        return 0.5 * daily(at / 2) + 0.02 * (at % 3)

    times = [MONDAY_MS + at * HOUR_MS // 2 for at in range(144)]
    shadows: list[dict[str, Any]] = [
        {"strategy": "JointShedder", "rounds": 4320, "gap": 0.05, "gap_p95": 0.12, "regret": 0.2,
         "moves": 1310, "moved": 4.2, "active_moves": 960, "active_moved": 3.1},
        {"strategy": "ThresholdShedder", "rounds": 4320, "gap": 0.27, "gap_p95": 0.5,
         "regret": -0.02, "moves": 150, "moved": 0.8, "active_moves": 960, "active_moved": 3.1},
    ]  # fmt: skip
    return {
        "step_ms": HOUR_MS // 2,
        "points": [
            {"at_ms": at_ms, "largest": use(at), "bound": 0.4 * daily(at / 2),
             "bound_within_policies": 0.42 * daily(at / 2)}
            for at, at_ms in enumerate(times)
        ],
        "total": {"rounds": 4320, "largest": 0.5, "bound": 0.4, "bound_within_policies": 0.42,
               "gap": 0.25, "gap_within_policies": 0.2, "gap_p95": 0.31},
        "shadows": shadows,
        "regrets": [
            {"strategy": one["strategy"], "at_ms": at_ms,
             "regret": one["regret"] + 0.05 * math.sin(at / 7)}
            for one in shadows
            for at, at_ms in enumerate(times)
        ],
    }  # fmt: skip


def achieved_part() -> Part:
    def summary(cause: str, moves: int, helped: int, hurt: int) -> dict[str, Any]:
        return {
            "cause": cause, "shedder": "ThresholdShedder", "placement": "RoundRobin",
            "moves": moves, "finished": moves, "judged": moves - 2, "helped": helped,
            "no_difference": moves - 2 - helped - hurt, "hurt": hurt,
            "helped_fraction": helped / (moves - 2), "gain_mean": 0.05, "evened_mean": 0.1,
            "returns": moves // 5, "pause_p50_s": 0.26, "pause_p95_s": 0.4,
            "pause_s": 0.26 * moves, "messages_delayed": 210.0 * moves, "topics": 4 * moves,
            "connections": 8 * moves,
        }  # fmt: skip

    verdicts = ("helped", "helped", "helped", "no difference", "hurt")
    sample = [
        {
            "bundle": bundle(at), "source": "broker-0:8080", "target": "broker-1:8080",
            "cause": "overloaded", "verdict": verdicts[at % 5],
            "spread_expected": 0.1 + at / 400,
            "spread_after": 0.1 + at / 400 + (-0.08, -0.05, -0.03, 0.0, 0.05)[at % 5],
            "at_ms": MONDAY_MS + at * HOUR_MS,
        }
        for at in range(60)
    ]  # fmt: skip
    returned = [
        {
            "rank": 1, "bundle": bundle(1, EVIL), "returns": 7, "returns_for_balance": 7,
            "moves": 15, "brokers": 2, "median_back_s": 240.0, "pause_s": 4.2,
            "messages_delayed": 900.0, "usual_cause": "overloaded",
        }
    ]  # fmt: skip
    found = {
        "facts": {"window_s": 300.0, "back_within_s": 3600.0},
        "summary": [summary("overloaded", 60, 30, 12), summary("swap", 12, 9, 0)],
        "sample": sample,
        "worst": [row for row in sample if row["verdict"] == "hurt"][:5],
        "returned": returned,
        "bouncing": 1,
        "reasons": [{"reason": "no hand-over is recorded", "count": 4}],
        "pauses": [{"step": step, "count": 30 - step * step} for step in range(-5, 4)],
    }
    return MOVES.show(found)


def hottest_part() -> Part:
    def ranked(ranking: str, rank: int, name: str) -> dict[str, Any]:
        return {
            "ranking": ranking, "rank": rank, "bundle": name, "share": 0.12 / rank,
            "msgs_per_s_mean": 14_000.0 / rank, "bytes_per_s_mean": 14e6 / rank,
            "msgs_per_s_std": 3000.0 / rank, "msgs_std_over_mean": 0.21,
        }  # fmt: skip

    names = [bundle(1, EVIL), *(bundle(at) for at in range(2, 21))]
    week = [{"hour": hour, "msgs_per_s": 1e5 * daily(hour)} for hour in range(100)]
    return HOTTEST.show(
        {
            "hottest": [ranked("hottest", at, name) for at, name in enumerate(names, start=1)],
            "volatile": [
                ranked("most_volatile", at, name) for at, name in enumerate(names, start=1)
            ],
            "week": week,
        }
    )


def sized(name: str, share: float, **more: Any) -> dict[str, Any]:
    rates = dict.fromkeys(RATES[:4], 1000.0)
    counts = {"topics": 4, "producers": 2, "consumers": 2}
    return {
        "bundle": name,
        "namespace": name.rpartition("/")[0],
        "broker": "broker-1:8080",
        "share": share,
        **rates,
        **counts,
        **more,
    }


def shape_parts() -> list[Part]:
    rules = SplitRules()
    splits = shapes.to_split(
        [sized(bundle(1, EVIL), 0.2), sized(bundle(2), 0.01, msgs_in_per_s=40_000.0)], 6, rules
    )
    merges = shapes.to_merge(
        [sized(bundle(at), 0.0001) for at in range(10, 14)], 2, rules, {"shop/orders": 20}
    )
    told = {
        "namespace": "shop/logs", "bundles": 4, "share": 0.4, "largest_share": 0.15,
        "largest_bundle": bundle(1, "shop/logs"), "brokers": 3,
    }  # fmt: skip
    large = [told, {**told, "namespace": EVIL, "bundles": 64, "largest_share": 0.02}]
    largest = [shapes.judged(one, 6) for one in large]
    cuts = {"rules": rules, "bundles": 148, "brokers": 6, "splits": splits, "merges": merges}
    return [
        shapes.CUTS.show(cuts),
        shapes.NAMESPACES.show({"brokers": 6, "largest": largest, "count": 7}),
    ]


def capacity_part() -> Part:
    hours = np.arange(24 * 28)
    loads = np.array([0.4 * daily(hour) + 0.004 * hour / 24 for hour in hours.tolist()])
    found = {
        "resource": "cpu",
        "hours_ms": MONDAY_MS + hours * HOUR_MS,
        "loads": loads,
        "brokers": 6,
    }
    return CAPACITY.show(found)


def speeds_part() -> Part:
    rows = [
        {
            "broker": f"broker-{at}:8080", "broker_class": "old" if at < 3 else "new",
            "slope": 1.35 if at == 2 else 1.0 + 0.01 * at, "error": 0.04, "idle": 10.0,
            "background": 12.0, "hours": 72,
        }
        for at in range(6)
    ]  # fmt: skip
    return SPEEDS.show({"learned": True, "brokers": rows, "all_brokers": 6})


def pricing_part() -> Part:
    terms = [
        {
            "broker_class": name, "resource": "cpu", "rate": rate, "value": value,
            "low": value * 0.9, "high": value * 1.1, "typical_usage": 30.0 / (place + 1),
            "verdict": "known", "partners": "",
        }
        for name, value in (("old", 0.004), ("new", 0.002))
        for place, rate in enumerate(RATES)
    ]  # fmt: skip
    quality = [
        {
            "broker_class": name, "resource": "cpu", "refused": None, "minutes": 4320,
            "mape": 0.04, "baseline_mape": 0.12, "coverage": 0.91, "drift": None,
            "drifted": False,
        }
        for name in ("new", "old")
    ]  # fmt: skip
    hours = [
        {
            "broker": f"broker-{at % 6}:8080", "broker_class": "old" if at % 6 < 3 else "new",
            "used": 100.0 + at, "predicted": 100.0 + at + (-1) ** at * 4,
        }
        for at in range(120)
    ]  # fmt: skip
    return QUALITY.show({"terms": terms, "quality": quality, "hours": hours})


def replayed_part() -> Part:
    names = (
        "avg+avg",
        "transfer+least_resource_usage_with_weight",
        "(recorded)",
        "threshold+least_long_term_message_rate margin=0.05 moves_per_round=20",
        "uniform+avg",
        "as recorded, spread anew",
        "overload+round_robin",
        "overload+least_average_usage",
        "as recorded",
    )
    scores = [
        {
            "rank": rank, "combination": -1 if name == "(recorded)" else rank, "name": name,
            "shedder": name.partition("+")[0] if "+" in name else "",
            "placement": name.partition("+")[2], "covered_s": 36_000.0, "largest": 0.4,
            "gap": 0.05 * (rank - 3), "penalty": 0.2 + 0.05 * rank,
            "max_over_mean": 1.1 + 0.05 * rank, "max_over_mean_p95": 1.2 + 0.05 * rank,
            "overload_fraction": 0.001 * rank, "moves": 10 * rank, "returned": rank,
            "moved_connections": 80 * rank, "moved_per_hour": 0.02 * (6 - rank),
        }
        for rank, name in enumerate(names, start=1)
    ]  # fmt: skip
    trust = {
        rank: {
            "level": "fair", "because": "loads are modelled", "rounds": 4320, "refused": 12,
            "bases": 288, "reproduced": 280, "cpu_changed_error": 0.03,
        }
        for rank in (1, 2, 4, 5, 6, 7, 8, 9)
    }  # fmt: skip
    advice = Advice(
        verdict=Verdict.TRY,
        text="Try avg+avg, observing first: 20 % less penalty than the strategy in force (penalty "
        "0.250, max/mean 1.15, against penalty 0.500, max/mean 1.40).",
        name="avg+avg",
        rests_on="10 h of history with 120 recorded moves, of which 7.5 h are scored; both "
        "strategies began with bundles spread anew.",
        costs="Each hour 12 moves, 96 connections made anew, 10 % of the traffic interrupted.",
        sure=Level.FAIR,
        because="77% of the traffic lay elsewhere: its loads are those of shares of traffic",
    )
    return REPLAYED.show(
        {"scores": scores, "trust": trust, "count": 23, "advice": advice, "bound": 0.36}
    )


def intake_part() -> Part:
    return INTAKE.show(
        {
            "batches": 2,
            "totals": {"read": 10_000, "kept": 9_950, "quarantined": 40, "duplicate": 10},
            "reasons": [
                {"reason": "no JSON: ended too early", "lines": 40, "file": "date=x/<f>.gz"}
            ],
            "lost": [{"stream": "reports", "why": "queue_full", "records": 12, "writers": 1}],
            "bounds_ms": (MONDAY_MS, MONDAY_MS + 72 * HOUR_MS),
            "brokers": 6,
        }
    )


def every_part() -> list[Part]:
    return [
        balance_part(),
        DISTANCE.show(distance()),
        achieved_part(),
        hottest_part(),
        *shape_parts(),
        capacity_part(),
        speeds_part(),
        pricing_part(),
        replayed_part(),
        intake_part(),
        lacking("What is to come", "replay", "/tables/<out>"),
    ]


def write(file: Path) -> None:
    file.write_text(report_page({f"cluster {EVIL}": every_part()}), encoding="utf-8")
