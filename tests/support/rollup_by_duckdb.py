"""Bundles rolled up by DuckDB in SQL, as Spark does it in `rollup_by_spark`: SAMPLES OUT."""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any, Final

import duckdb
from rollup_samples import RATES

TABLES: Final = ("bundle_minutes", "bundle_hours", "bundle_days")


def _columns(pattern: str) -> str:
    return ", ".join(pattern.format(x=rate) for rate in RATES)


_MINUTES: Final = """
    WITH spans AS (
        SELECT cluster, bundle, at_ms AS until_ms, {rates}, at_ms - greatest(
            round(least(coalesce(interval_s, window_s, 1.0), 300.0) * 1000)::BIGINT, 1
        ) AS from_ms
        FROM read_parquet('{samples}')
    ), slices AS (
        SELECT *, unnest(
            range(from_ms // 60000 * 60000, (until_ms - 1) // 60000 * 60000 + 1, 60000)
        ) AS minute_ms
        FROM spans
    ), weighted AS (
        SELECT *, (least(until_ms, minute_ms + 60000) - greatest(from_ms, minute_ms)) / 1000.0 AS s
        FROM slices
    )
    SELECT cluster, bundle, regexp_extract(bundle, '^(.*)/', 1) AS namespace,
        make_timestamp(minute_ms * 1000) AS minute, make_timestamp(minute_ms * 1000)::DATE AS date,
        count(*) AS reports, least(sum(s), 60.0) AS seconds,
        {means}
    FROM weighted GROUP BY cluster, bundle, minute_ms
"""
_LONGER: Final = """
    SELECT cluster, bundle, namespace, date_trunc('{unit}', minute) AS "{unit}",
        minute::DATE AS date, sum(seconds) AS seconds, count(*) AS minutes, {more}
    FROM read_parquet('{minutes}') GROUP BY ALL
"""


def _longer() -> str:
    percentile = "list_sort(list({x}_mean))[ceil(count(*) * {part})::BIGINT] AS {x}_{name}"
    percentiles = ", ".join(
        percentile.format(x=rate, part=part, name=name)
        for rate in RATES
        for name, part in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    )
    stds = ", ".join(
        f"sqrt(greatest(sum(({both}) ** 2 * seconds) / sum(seconds) - "
        f"(sum(({both}) * seconds) / sum(seconds)) ** 2, 0)) AS {what}_per_s_std"
        for what in ("msgs", "bytes")
        for both in [f"{what}_in_per_s_mean + {what}_out_per_s_mean"]
    )
    means = _columns("sum({x}_mean * seconds) / sum(seconds) AS {x}_mean, max({x}_max) AS {x}_max")
    return f"{means}, {percentiles}, {stds}"


def measured(samples: Path, out: Path) -> dict[str, Any]:
    db = duckdb.connect()
    db.execute("SET threads = 2; SET TimeZone = 'UTC'; SET preserve_insertion_order = false")
    out.mkdir(parents=True)
    began_s = time.perf_counter()
    means = _columns("sum({x} * s) / sum(s) AS {x}_mean, max({x}) AS {x}_max")
    source = f"{samples}/**/*.parquet"
    _copy(db, _MINUTES.format(samples=source, rates=", ".join(RATES), means=means), out, TABLES[0])
    for table, unit in zip(TABLES[1:], ("hour", "day"), strict=True):
        minutes = f"{out}/{TABLES[0]}/**/*.parquet"
        _copy(db, _LONGER.format(minutes=minutes, unit=unit, more=_longer()), out, table)
    took_s = time.perf_counter() - began_s
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"took_s": took_s, "peak_mib": peak_mib}


def _copy(db: duckdb.DuckDBPyConnection, sql: str, out: Path, table: str) -> None:
    options = "FORMAT parquet, COMPRESSION zstd, PARTITION_BY (date)"
    db.execute(f"COPY ({sql}) TO '{out / table}' ({options})")


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measured(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
