"""How fast bundles are rolled up, by Spark and by one process of DuckDB, and in what memory."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pyarrow.compute as pc
import pytest
import rollup_by_duckdb
import rollup_by_spark
import rollup_samples
from figures import emit
from pyarrow import types
from pyarrow.dataset import dataset

pytestmark = [pytest.mark.bench, pytest.mark.timeout(1800)]

SIZES: Final = (1_000_000, 16_000_000, 64_000_000)
"""The last is 18 hours of 10,000 bundles that are reported on every ten seconds."""

TARGET_PER_S: Final = 1_000_000
NOISE: Final = 1.25
"""How many times its target a figure may miss: two cores are never all for one."""

MOST_GROWTH: Final = 1.3


def run(program: ModuleType, *arguments: object) -> dict[str, Any]:
    """Run a module as a process of its own, and return what it told."""
    command = [sys.executable, str(program.__file__), *map(str, arguments)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    told: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
    return told


def totals(out: Path, table: str) -> dict[str, float]:
    """Return the number of rows and the sum of every number of a table, read part by part."""
    source = dataset(out / table, partitioning="hive")
    numbers = [
        field.name
        for field in source.schema
        if types.is_floating(field.type) or types.is_int64(field.type)
    ]
    found = dict.fromkeys(["rows", *numbers], 0.0)
    for batch in source.to_batches(columns=numbers):
        found["rows"] += batch.num_rows
        for name in numbers:
            found[name] += pc.sum(batch[name]).as_py() or 0.0
    return found


def test_bundles_are_rolled_up_at_speed_and_in_flat_memory(tmp_path: Path) -> None:
    figures: dict[int, dict[str, dict[str, Any]]] = {}
    for rows in SIZES:
        samples, spark_out, duckdb_out = (
            tmp_path / f"{what}-{rows}" for what in ("samples", "spark", "duckdb")
        )
        run(rollup_samples, samples, rows)
        figures[rows] = {
            "spark": run(rollup_by_spark, samples, spark_out),
            "duckdb": run(rollup_by_duckdb, samples, duckdb_out),
        }
        for table in rollup_by_duckdb.TABLES:
            expected = totals(duckdb_out, table)
            assert totals(spark_out, table) == pytest.approx(expected, rel=1e-9), table
        for done in (samples, spark_out, duckdb_out):
            shutil.rmtree(done)
        for engine, told in figures[rows].items():
            emit(
                "rollup",
                engine=engine,
                samples=rows,
                took_s=told["took_s"],
                samples_per_s=round(rows / told["took_s"]),
                peak_mib=told["peak_mib"],
                target_per_s=TARGET_PER_S,
            )
    faster = [
        rows for rows in SIZES if _took_s(figures, rows, "spark") < _took_s(figures, rows, "duckdb")
    ]
    pays = f"from {faster[0]} samples on" if faster else "at no size: DuckDB is faster on one host"
    emit("rollup_spark_pays", told=pays, tried=SIZES)
    small, large = (figures[rows]["spark"] for rows in SIZES[1:])
    growth = large["peak_mib"] / small["peak_mib"]
    python_growth = large["python_peak_mib"] / small["python_peak_mib"]
    emit(
        "rollup_memory",
        times_the_input=SIZES[2] // SIZES[1],
        jvm_growth=growth,
        python_growth=python_growth,
    )
    assert growth <= MOST_GROWTH
    assert python_growth <= MOST_GROWTH
    assert SIZES[-1] / large["took_s"] >= TARGET_PER_S / NOISE


def _took_s(figures: dict[int, dict[str, dict[str, Any]]], rows: int, engine: str) -> float:
    took_s: float = figures[rows][engine]["took_s"]
    return took_s
