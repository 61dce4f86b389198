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
"""Of the largest size."""

NOISE: Final = 1.25
"""How many times its target a figure may miss: two cores are never all for one."""

HEAP: Final = "2g"
"""What the command gives Spark by itself."""

SMALL_HEAP: Final = "600m"
"""Java takes what it may have before it tidies up: what it needs shows where it may have little."""

MOST_GROWTH: Final = 1.3


def run(program: ModuleType, *arguments: object) -> dict[str, Any]:
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


@pytest.fixture(name="samples", scope="module")
def samples_fixture(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("samples")
    for rows in SIZES:
        run(rollup_samples, folder / str(rows), rows)
    return {rows: folder / str(rows) for rows in SIZES}


def test_bundles_are_rolled_up_at_speed(samples: dict[int, Path], tmp_path: Path) -> None:
    figures: dict[int, dict[str, dict[str, Any]]] = {}
    for rows, source in samples.items():
        out = {engine: tmp_path / f"{engine}-{rows}" for engine in ("spark", "duckdb")}
        figures[rows] = {
            "spark": run(rollup_by_spark, source, out["spark"], HEAP),
            "duckdb": run(rollup_by_duckdb, source, out["duckdb"]),
        }
        for table in rollup_by_duckdb.TABLES:
            expected = totals(out["duckdb"], table)
            assert totals(out["spark"], table) == pytest.approx(expected, rel=1e-9), table
        for done in out.values():
            shutil.rmtree(done)
        for engine, told in figures[rows].items():
            emit(
                "rollup",
                engine=engine,
                samples=rows,
                took_s=told["took_s"],
                samples_per_s=round(rows / told["took_s"]),
            )
    for engine in ("spark", "duckdb"):
        took_s = _took_s(figures, SIZES[2], engine) - _took_s(figures, SIZES[1], engine)
        beyond_per_s = (SIZES[2] - SIZES[1]) / took_s
        # By then Java has compiled what runs.
        emit("rollup_beyond", engine=engine, samples=SIZES[1], samples_per_s=round(beyond_per_s))
    assert SIZES[2] / _took_s(figures, SIZES[2], "spark") >= TARGET_PER_S / NOISE
    faster = [
        rows for rows in SIZES if _took_s(figures, rows, "spark") < _took_s(figures, rows, "duckdb")
    ]
    pays = f"from {faster[0]} samples on" if faster else "at no size: DuckDB is faster on one host"
    emit("rollup_spark_pays", told=pays, tried=SIZES)


def test_four_times_the_samples_need_no_more_memory(
    samples: dict[int, Path], tmp_path: Path
) -> None:
    small, large = (
        run(rollup_by_spark, samples[rows], tmp_path / str(rows), SMALL_HEAP) for rows in SIZES[1:]
    )
    growth = {name: large[name] / small[name] for name in ("peak_mib", "python_peak_mib")}
    emit(
        "rollup_memory",
        heap=SMALL_HEAP,
        times_the_input=SIZES[2] // SIZES[1],
        small=small,
        large=large,
        growth=growth,
        target=MOST_GROWTH,
    )
    assert max(growth.values()) <= MOST_GROWTH


def _took_s(figures: dict[int, dict[str, dict[str, Any]]], rows: int, engine: str) -> float:
    took_s: float = figures[rows][engine]["took_s"]
    return took_s
