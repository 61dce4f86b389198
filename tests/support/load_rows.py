"""Rows of the tables ``bundle_load`` and ``broker_load`` with little to write for each."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from loadmanager.pipeline.contract import Table
from loadmanager.pipeline.store import Store
from loadmanager.pipeline.tables import BROKER_LOAD, BUNDLE_LOAD

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_LAST_MS: Final = 253_402_300_799_999
"""The end of the year 9999, the last that a date can be of."""

NOON_MS: Final = 1_767_614_400_000
"""2026-01-05, a Monday, at 12:00 UTC."""

RATES: Final = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
RESOURCES: Final = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
FIRST: Final = "t/n/0x00000000_0x80000000"
SECOND: Final = "t/n/0x80000000_0xffffffff"


def sample(
    at_s: float,
    rate: float,
    *,
    bundle: str = FIRST,
    broker: str = "a:1",
    interval_s: float | None = 10.0,
    window_s: float | None = 5.0,
    **more: Any,
) -> dict[str, Any]:
    """Return a row of ``bundle_load`` so many seconds after noon.

    Messages in are ``rate``, out twice that; bytes in a hundred times, out two hundred times.
    """
    return {
        **_envelope(at_s, broker, interval_s, window_s),
        "bundle": bundle,
        "namespace": bundle.rpartition("/")[0],
        **_rates(rate),
        "topics": 1,
        "producers": 1,
        "consumers": 1,
        "cache_bytes": 0,
        **more,
    }


def report(
    at_s: float,
    rate: float,
    *,
    broker: str = "a:1",
    broker_class: str = "",
    interval_s: float | None = 10.0,
    window_s: float | None = 5.0,
    cpu: float | None = 0.5,
    **more: Any,
) -> dict[str, Any]:
    """Return a row of ``broker_load``: ``cpu`` is the fraction of four cores, None unmeasured."""
    usage = {f"{one}_{part}": 0.0 for one in RESOURCES for part in ("usage", "limit")}
    if cpu is not None:
        usage |= {"cpu_usage": cpu * 400.0, "cpu_limit": 400.0}
    return {
        **_envelope(at_s, broker, interval_s, window_s),
        "broker_class": broker_class,
        "draining": False,
        **_rates(rate),
        **usage,
        "topics": 3,
        "producers": 2,
        "consumers": 1,
        **more,
    }


def _envelope(
    at_s: float, broker: str, interval_s: float | None, window_s: float | None
) -> dict[str, Any]:
    at_ms = NOON_MS + round(at_s * 1000)
    return {
        "cluster": "c",
        "writer": broker,
        "instance": "ab12",
        "seq": at_ms - NOON_MS + 1,
        "at_ms": at_ms,
        "broker": broker,
        "broker_class": "",
        "reported_at_ms": at_ms,
        "interval_s": interval_s,
        "window_s": window_s,
    }


def _rates(rate: float) -> dict[str, float]:
    return dict(zip(RATES, (rate, 2 * rate, 100 * rate, 200 * rate), strict=True))


def table_of(spark: "SparkSession", table: Table, rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - only where Spark is

    names = [one for one in table.schema.names if one not in {"at", "date"}]
    schema = table.schema.__class__([table.schema[name] for name in names])
    doubles = {one.name for one in schema if one.dataType.typeName() == "double"}

    def value(row: Mapping[str, Any], name: str) -> Any:
        found = row.get(name)
        return float(found) if name in doubles and found is not None else found

    values: Sequence[tuple[Any, ...]] = [tuple(value(row, name) for name in names) for row in rows]
    at = F.timestamp_millis(F.least("at_ms", F.lit(_LAST_MS)))
    frame = spark.createDataFrame(list(values), schema)
    return frame.withColumns({"at": at, "date": F.to_date(at)}).select(*table.schema.names)


def samples(spark: "SparkSession", rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    return table_of(spark, BUNDLE_LOAD, rows)


def reports(spark: "SparkSession", rows: Iterable[Mapping[str, Any]]) -> "DataFrame":
    return table_of(spark, BROKER_LOAD, rows)


class GivenStore(Store):
    """What is derived is stored below ``out``, as ever."""

    def __init__(self, spark: "SparkSession", out: str, tables: Mapping[str, "DataFrame"]) -> None:
        super().__init__(spark, out)
        self._tables = tables

    def table(self, name: str) -> "DataFrame":
        return self._tables[name] if name in self._tables else super().table(name)
