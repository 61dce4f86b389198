"""A cluster that was hand-made to tell what a move did: rows as ingestion has them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEP_S = 10
BROKER_LOAD = """cluster string, broker string, broker_class string, at timestamp, date date,
    reported_at_ms bigint, interval_s double, window_s double,
    cpu_usage double, cpu_limit double, memory_usage double, memory_limit double,
    direct_memory_usage double, direct_memory_limit double,
    bandwidth_in_usage double, bandwidth_in_limit double,
    bandwidth_out_usage double, bandwidth_out_limit double,
    msgs_in_per_s double, msgs_out_per_s double, bytes_in_per_s double, bytes_out_per_s double"""
BUNDLE_LOAD = """cluster string, broker string, bundle string, at timestamp, date date,
    reported_at_ms bigint, topics bigint, producers bigint, consumers bigint"""
MOVES = """cluster string, writer string, instance string, seq bigint, at timestamp, date date,
    at_ms bigint, epoch bigint, round bigint, move bigint, bundle string, source string,
    target string, outcome string, cause string, shedder string, placement string,
    msgs_in_per_s double, msgs_out_per_s double, bytes_in_per_s double, bytes_out_per_s double,
    source_score double, target_score double"""
HAND_OVERS = """cluster string, epoch bigint, at timestamp, date date, bundle string,
    source string, target string, outcome string, ordered_at_ms bigint, released_at_ms bigint,
    acquired_at_ms bigint, took_s double, pause_s double"""
ROUNDS = "cluster string, at_ms bigint, settings string"


def frame(spark: "SparkSession", schema: str, rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    forms = dict(part.split() for part in schema.split(","))

    def value(row: Mapping[str, Any], name: str) -> Any:
        found = row.get(name)
        # Lines of history write whole numbers without a point.
        return float(found) if forms[name] == "double" and found is not None else found

    return spark.createDataFrame([tuple(value(row, one) for one in forms) for row in rows], schema)


def when(at_s: float) -> dict[str, Any]:
    at = datetime.fromtimestamp(at_s, UTC)
    return {"at": at, "date": date(at.year, at.month, at.day), "at_ms": round(at_s * 1000)}


def report(cluster: str, broker: str, at_s: float, cpu: float, **more: Any) -> dict[str, Any]:
    traffic = {f"{what}_{way}_per_s": 1000.0 for what in ("msgs", "bytes") for way in ("in", "out")}
    return {
        "cluster": cluster,
        "broker": broker,
        "broker_class": "plain",
        "reported_at_ms": round(at_s * 1000),
        "interval_s": float(STEP_S),
        "window_s": float(STEP_S),
        "cpu_usage": float(cpu),
        "cpu_limit": 100.0,
        "bandwidth_in_usage": cpu * 10.0,
        "bandwidth_in_limit": 10000.0,
        "memory_usage": 100.0,
        "memory_limit": 200.0,
        **{f"{name}_usage": 0.0 for name in ("direct_memory", "bandwidth_out")},
        **{f"{name}_limit": 0.0 for name in ("direct_memory", "bandwidth_out")},
        **when(at_s),
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
    bundle: str = "t/n/0x00000000_0x80000000"
    silent: Sequence[str] = ()
    rates: Sequence[float | None] = (250.0, 250.0, 250.0, 250.0)
    extra_reports: list[dict[str, Any]] = field(default_factory=list)

    def reports(self) -> Iterator[dict[str, Any]]:
        for at_s in range(900 + STEP_S, 1120, STEP_S):
            for broker, cpu in (self.before if at_s <= 1000 else self.after).items():
                if broker not in self.silent or at_s <= 1000:
                    yield report(self.cluster, broker, at_s, cpu)
        yield from self.extra_reports

    def move(self) -> dict[str, Any]:
        names = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
        return {
            "cluster": self.cluster,
            "writer": "w:1",
            "instance": "i",
            "seq": 1,
            "epoch": 1,
            "round": 1,
            "move": 1,
            "bundle": self.bundle,
            "source": self.source,
            "target": self.target,
            "outcome": self.outcome,
            "cause": self.cause,
            "shedder": "S",
            "placement": "P",
            **dict(zip(names, self.rates, strict=True)),
            **when(999.5),
        }

    def hand_over(self) -> dict[str, Any] | None:
        if self.ended is None:
            return None
        done = self.ended == "finished"
        return {
            "cluster": self.cluster,
            "epoch": 1,
            "bundle": self.bundle,
            "source": self.source,
            "target": self.target,
            "outcome": self.ended,
            "ordered_at_ms": 1_000_000,
            "released_at_ms": 1_001_500 if done else None,
            "acquired_at_ms": 1_002_000 if done else None,
            "took_s": 2.0 if done else None,
            "pause_s": 0.5 if done else None,
            **when(1002),
        }

    def bundle_report(self) -> dict[str, Any]:
        return {
            "cluster": self.cluster,
            "broker": self.source,
            "bundle": self.bundle,
            "reported_at_ms": 990_000,
            "topics": 7,
            "producers": 3,
            "consumers": 5,
            **when(990),
        }
