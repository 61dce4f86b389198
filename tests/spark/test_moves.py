"""What moves achieved, against figures that were worked out by hand."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from load_rows import FIRST, reports, samples, table_of
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from loadmanager.core.scores import RESOURCES, FloatArray, ResourceWeights, weighted_max_usage
from loadmanager.pipeline.confidence import NORMAL_95
from loadmanager.pipeline.load_windows import Windows, loads, means, weights_in_force
from loadmanager.pipeline.move_effects import (
    MOVE_EFFECTS,
    MOVE_SUMMARY,
    PING_PONG,
    Recorded,
    effects,
    ping_pong,
    summary,
    with_hand_overs,
    with_returns,
)
from loadmanager.pipeline.tables import INGESTED

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark
WINDOWS = Windows(100.0)
STEP_S = 10


def report(cluster: str, broker: str, at_s: float, cpu: float, **more: Any) -> dict[str, Any]:
    traffic = {f"{what}_{way}_per_s": 1000.0 for what in ("msgs", "bytes") for way in ("in", "out")}
    return {
        "cluster": cluster,
        "broker": broker,
        "broker_class": "plain",
        "reported_at_ms": round(at_s * 1000),
        "interval_s": STEP_S,
        "window_s": STEP_S,
        "cpu_usage": cpu,
        "cpu_limit": 100.0,
        "bandwidth_in_usage": cpu * 10.0,
        "bandwidth_in_limit": 10000.0,
        "memory_usage": 100.0,
        "memory_limit": 200.0,
        **{f"{name}_usage": 0.0 for name in ("direct_memory", "bandwidth_out")},
        **{f"{name}_limit": 0.0 for name in ("direct_memory", "bandwidth_out")},
        "at_ms": round(at_s * 1000),
        **traffic,
        **more,
    }


@dataclass
class Moved:
    """One move in a cluster of its own: CPU of every broker before and after it.

    The order is written at 1000 s, the bundle is served again at 1002 s, and reports
    come every `STEP_S` from 900 s to 1110 s.
    """

    cluster: str
    before: dict[str, float]
    after: dict[str, float]
    source: str | None = "a:1"
    target: str = "b:1"
    outcome: str = "moved"
    cause: str = "overloaded"
    ended: str | None = "finished"
    silent: Sequence[str] = ()
    rates: Sequence[float | None] = (250.0, 250.0, 250.0, 250.0)
    extra_reports: list[dict[str, Any]] = field(default_factory=list)

    def reports(self) -> Iterator[dict[str, Any]]:
        for at_s in range(900 + STEP_S, 1120, STEP_S):
            for broker, cpu in (self.before if at_s <= 1000 else self.after).items():
                if broker not in self.silent or at_s <= 1000:
                    yield report(self.cluster, broker, at_s, cpu)
        yield from self.extra_reports

    @property
    def parties(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "epoch": 1,
            "bundle": FIRST,
            "source": self.source,
            "target": self.target,
        }

    def move(self) -> dict[str, Any]:
        names = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
        return {
            **self.parties,
            "writer": "w:1",
            "instance": "i",
            "seq": 1,
            "round": 1,
            "move": 1,
            "outcome": self.outcome,
            "cause": self.cause,
            "shedder": "S",
            "placement": "P",
            **dict(zip(names, self.rates, strict=True)),
            "at_ms": 999_500,
        }

    def hand_over(self) -> dict[str, Any] | None:
        if self.ended is None:
            return None
        done = self.ended == "finished"
        return {
            **self.parties,
            "outcome": self.ended,
            "ordered_at_ms": 1_000_000,
            "released_at_ms": 1_001_500 if done else None,
            "acquired_at_ms": 1_002_000 if done else None,
            "took_s": 2.0 if done else None,
            "pause_s": 0.5 if done else None,
            "at_ms": 1_002_000,
        }

    def bundle_report(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "broker": self.source,
            "bundle": FIRST,
            "reported_at_ms": 990_000,
            "topics": 7,
            "producers": 3,
            "consumers": 5,
            "at_ms": 990_000,
        }


# Everything grows by a quarter meanwhile, as x and y tell. A bundle of 20 moves from a to b.
GROWN = {"x:1": 50.0, "y:1": 50.0}
BEFORE = {"a:1": 80.0, "b:1": 20.0, "x:1": 40.0, "y:1": 40.0}
CASES = (
    Moved("helped", BEFORE, {"a:1": 75.0, "b:1": 50.0, **GROWN}),
    Moved("nothing but growth", BEFORE, {"a:1": 100.0, "b:1": 25.0, **GROWN}),
    Moved("overshot", BEFORE, {"a:1": 10.0, "b:1": 115.0, **GROWN}),
    Moved("few", {"a:1": 80.0, "b:1": 20.0}, {"a:1": 75.0, "b:1": 50.0}),
    Moved("silent", BEFORE, BEFORE, silent=("b:1",)),
    Moved("drained", BEFORE, BEFORE, cause="draining"),
    Moved("placed", BEFORE, BEFORE, source=None, outcome="placed", cause="unowned"),
    Moved("observed", BEFORE, BEFORE, outcome="observed", ended=None),
    Moved("untold", BEFORE, BEFORE, ended=None),
    Moved("replaced", BEFORE, BEFORE, ended="replaced"),
    Moved("left", BEFORE, BEFORE, ended="left"),
    # x strays by 5 below and y by 5 above their growth: a gain of 0.1 is within chance.
    Moved(
        "by chance",
        BEFORE,
        {"a:1": 95.0, "b:1": 30.0, "x:1": 45.0, "y:1": 55.0},
        rates=(None, None, None, None),
    ),
)


def told(spark: "SparkSession", cases: tuple[Moved, ...]) -> Recorded:
    settings = '{"filters":{"weights_cpu":1.0,"weights_bandwidth_in":0.0}}'
    rounds = [{"cluster": one.cluster, "at_ms": 1, "settings": settings} for one in cases]
    weights = weights_in_force(table_of(spark, INGESTED["rounds"], rounds))
    told_load = reports(spark, (row for one in cases for row in one.reports()))
    ended = [row for row in (one.hand_over() for one in cases) if row]
    return Recorded(
        moves=table_of(spark, INGESTED["moves"], (one.move() for one in cases)),
        hand_overs=table_of(spark, INGESTED["hand_overs"], ended),
        loads=loads(told_load, weights).localCheckpoint(),
        bundle_load=samples(spark, (one.bundle_report() for one in cases)),
    )


@pytest.fixture(scope="module")
def found(spark: "SparkSession") -> "DataFrame":
    tables = told(spark, CASES)
    made = effects(tables, WINDOWS, 3600.0, keep=lambda one: one.localCheckpoint())
    return MOVE_EFFECTS.conform(made).localCheckpoint()


@pytest.fixture(scope="module")
def rows(found: "DataFrame") -> Mapping[str, dict[str, Any]]:
    return {row["cluster"]: row.asDict() for row in found.collect()}


Rows = Mapping[str, dict[str, Any]]


def test_a_move_that_halves_the_spread_helped_and_is_told_whole(rows: Rows) -> None:
    row = rows["helped"]
    expected: dict[str, Any] = {
        "verdict": "helped", "reason": "", "control": "unaffected",
        "growth_score": 1.25, "spread_before": 0.60, "spread_expected": 0.75, "spread_after": 0.25,
        "gain": 0.50,
        # What clients paid.
        "pause_s": 0.5, "took_s": 2.0, "messages_delayed": 125.0, "topics": 7, "connections": 8,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == pytest.approx(expected)
    assert rows["placed"]["topics"] is None


def test_growth_that_all_brokers_share_is_no_effect_and_a_hotter_target_hurts(rows: Rows) -> None:
    row = rows["nothing but growth"]
    assert row["spread_after"] > row["spread_before"] + 0.1
    assert row["gain"] == pytest.approx(0.0, abs=1e-9)
    assert row["verdict"] == "no difference"
    assert rows["overshot"]["gain"] == pytest.approx(0.75 - 1.05)
    assert rows["overshot"]["verdict"] == "hurt"


def test_what_is_within_chance_is_no_difference(rows: Rows) -> None:
    row = rows["by chance"]
    assert row["gain"] == pytest.approx(0.10)
    # Two brokers, one degree of freedom: the deviation is that of both together.
    assert row["tolerance"] == pytest.approx(NORMAL_95 * 2**0.5 * (0.05**2 * 2) ** 0.5)
    assert row["verdict"] == "no difference"


def test_without_unaffected_brokers_the_whole_cluster_is_the_control(rows: Rows) -> None:
    row = rows["few"]
    assert row["control"] == "all"
    assert row["growth_score"] == pytest.approx(1.25)
    assert row["verdict"] == "helped"


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("silent", "too few reports of the target in 100 s after it arrived"),
        ("drained", "not for balance but draining"),
        ("placed", "no broker served it before"),
        ("observed", "only observed, not ordered"),
        ("untold", "no hand-over is recorded"),
        ("replaced", "replaced by another order"),
        ("left", "the term ended before it arrived"),
    ],
)
def test_a_move_that_cannot_be_judged_says_why(rows: Rows, case: str, reason: str) -> None:
    assert (rows[case]["verdict"], rows[case]["reason"]) == ("unknown", reason)


def test_the_summary_counts_verdicts_and_returns(found: "DataFrame") -> None:
    back = F.when(F.col("cluster").isin("overshot", "nothing but growth"), F.lit(60.0))
    one_cluster = found.withColumns({"back_after_s": back, "cluster": F.lit("all")})
    rows = MOVE_SUMMARY.conform(summary(one_cluster)).where("cause = 'overloaded'").collect()
    assert len(rows) == 1
    counts = ("moves", "finished", "judged", "helped", "no_difference", "hurt", "returns")
    assert [rows[0][name] for name in counts] == [10, 6, 5, 2, 2, 1, 2]
    assert rows[0]["helped_fraction"] == pytest.approx(0.4)
    assert rows[0]["shedder"] == "S"


def test_reports_weigh_by_the_time_they_stand_for(spark: "SparkSession") -> None:
    def of(at_s: float, cpu: float, **more: float) -> dict[str, Any]:
        return report("c", "a:1", at_s, cpu, **more)

    # 40 s at 60, of which the window has 30; then 70 s at 90.
    extra = [of(930, 60, interval_s=40.0), of(1000, 90, interval_s=70.0), of(1001, 100)]
    moved = Moved("c", {}, {}, extra_reports=extra)
    tables = told(spark, (moved,))
    asked = tables.moves.select(
        "cluster",
        F.lit("a:1").alias("broker"),
        F.lit(900_000).alias("from_ms"),
        F.lit(1_000_000).alias("until_ms"),
        F.lit(False).alias("clean"),  # noqa: FBT003 - a value
    )
    found = means(asked, tables.loads, WINDOWS, ["cluster", "broker"], ["cluster"]).first()
    assert found is not None
    assert found["covered_s"] == 100.0
    assert found["score"] == pytest.approx((30 * 0.6 + 70 * 0.9) / 100)


def moved(seq: int, at_s: float, path: str, **more: Any) -> dict[str, Any]:
    source, target = path.split(">")
    return {
        "cluster": "c", "writer": "w", "instance": "i", "seq": seq, "bundle": "t/n/0x0_0x1",
        "source": source, "target": target, "outcome": "moved", "cause": "overloaded",
        "at_ms": round(at_s * 1000), **more,
    }  # fmt: skip


def handed(ordered_s: float, path: str, pause_s: float) -> dict[str, Any]:
    source, target = path.split(">")
    return {
        "cluster": "c", "bundle": "t/n/0x0_0x1", "source": source, "target": target,
        "outcome": "finished", "ordered_at_ms": round(ordered_s * 1000), "pause_s": pause_s,
        "acquired_at_ms": round(ordered_s * 1000) + 500, "took_s": 0.5,
    }  # fmt: skip


def test_a_hand_over_belongs_to_the_last_decision_before_it(spark: "SparkSession") -> None:
    moves = [
        moved(1, 10, "a>b"),
        moved(2, 100, "b>a"),
        moved(3, 200, "a>b", outcome="observed"),
        moved(4, 300, "a>b"),
    ]
    # The clock that told of the order of 300 s was 2 s behind.
    ended = [handed(10.2, "a>b", 1.0), handed(100, "b>a", 2.0), handed(298, "a>b", 4.0)]
    decided, told_of = (
        table_of(spark, INGESTED[name], rows)
        for name, rows in (("moves", moves), ("hand_overs", ended))
    )
    rows = with_hand_overs(decided, told_of)
    told = {row["seq"]: (row["pause_s"], row["ordered_at_ms"]) for row in rows.collect()}
    assert told == {1: (1.0, 10_200), 2: (2.0, 100_000), 3: (None, 200_000), 4: (4.0, 298_000)}


def test_a_bundle_that_comes_back_in_time_is_counted_and_ranked(spark: "SparkSession") -> None:
    moves = [
        moved(1, 0, "a>b"),
        moved(2, 100, "b>a"),  # back after 100 s
        moved(3, 150, "a>c"),
        moved(4, 250, "c>b"),  # back to b, which it left 150 s before
        moved(5, 5000, "b>a", outcome="observed"),
        moved(6, 9000, "b>a"),  # long after
        moved(7, 0, "a>b", bundle="t/n/0x1_0x2"),
        moved(8, 50, "b>a", bundle="t/n/0x1_0x2", cause="draining"),
        moved(9, 60, "a>b", bundle="t/n/0x2_0x3"),
    ]
    times = F.col("at_ms").alias("ordered_at_ms")
    handed = table_of(spark, INGESTED["moves"], moves).select("*", times)
    back = with_returns(handed, 3600.0)
    assert {row["seq"]: row["back_after_s"] for row in back.collect()} == {
        1: None, 2: 100.0, 3: None, 4: 150.0, 5: None, 6: None, 7: None, 8: 50.0, 9: None,
    }  # fmt: skip
    more = {
        "namespace": F.lit("t/n"),
        "for_balance": F.col("cause") == "overloaded",
        "pause_s": F.lit(0.5),
        "messages_delayed": F.lit(10.0),
    }
    rows = PING_PONG.conform(ping_pong(back.withColumns(more))).orderBy("rank").collect()
    names = ("rank", "bundle", "returns", "returns_for_balance", "moves", "brokers", "pause_s")
    assert [[row[name] for name in names] for row in rows] == [
        [1, "t/n/0x0_0x1", 2, 2, 5, 3, 2.5],
        [2, "t/n/0x1_0x2", 1, 0, 2, 2, 1.0],
    ]
    assert rows[0]["median_back_s"] == 125.0


WEIGHTS = ResourceWeights(cpu=0.5, direct_memory=2.0, bandwidth_out=0.0)


def test_the_score_is_that_of_leaders(spark: "SparkSession") -> None:
    rng = np.random.default_rng(3)
    usage, limit = rng.uniform(0, 120, (40, 5)), rng.choice([0.0, 100.0, 250.0], (40, 5))
    told = [
        report("c", f"b{row}:1", 100, 0, **amounts(usage[row], limit[row]))
        for row in range(len(usage))
    ]
    names = ("cpu", "direct_memory", "bandwidth_in", "bandwidth_out")
    weights = ",".join(f'"weights_{name}":{getattr(WEIGHTS, name)}' for name in names)
    rounds = [{"cluster": "c", "at_ms": 1, "settings": f'{{"filters":{{{weights}}}}}'}]
    in_force = weights_in_force(table_of(spark, INGESTED["rounds"], rounds))
    found = loads(reports(spark, told), in_force).collect()
    scores = {row["broker"]: row["score"] for row in found}
    wanted = weighted_max_usage(usage, limit, WEIGHTS)
    assert [scores[f"b{row}:1"] for row in range(len(usage))] == pytest.approx(wanted.tolist())


def amounts(usage: FloatArray, limit: FloatArray) -> dict[str, float]:
    columns = {"usage": usage, "limit": limit}
    return {
        f"{name}_{what}": float(values[number])
        for what, values in columns.items()
        for number, name in enumerate(RESOURCES)
    }
