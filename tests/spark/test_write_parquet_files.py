"""Files that Python workers made stand where Spark writes, byte for byte."""

from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from loadmanager.pipeline.ingest.parquet_files import PARQUET_FILES, SEPARATOR, write_parquet_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

EVERY_BYTE = bytes(range(256))
MONDAY = date(2026, 1, 5)


def test_each_row_is_a_file_of_its_own_byte_for_byte(spark: "SparkSession", tmp_path: Path) -> None:
    # More days than a task has files open at a time.
    days = [MONDAY + timedelta(days=number) for number in range(40)]
    rows: list[tuple[str, date | None, bytes]] = [
        ("bundle_load", day, EVERY_BYTE + bytes([number])) for number, day in enumerate(days)
    ]
    rows += [("bundle_load", MONDAY, EVERY_BYTE * size) for size in (2, 3)]
    rows += [("lines", None, b"\r\n\xff\xfe\0"), ("lines", None, b"")]
    made = spark.createDataFrame(rows, PARQUET_FILES).coalesce(1)
    write_parquet_files(made, str(tmp_path / "out [1]"))
    found = {
        (str(path.parent.relative_to(tmp_path)), path.read_bytes())
        for path in tmp_path.rglob("part-*")
        if path.is_file()
    }
    assert found == {
        (
            f"out [1]/part={part}/date={day or '__HIVE_DEFAULT_PARTITION__'}",
            content + SEPARATOR.encode(),
        )
        for part, day, content in rows
    }
