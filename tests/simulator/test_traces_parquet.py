import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from trace_files import SOUND, assert_is_sound, csv_file, told

from loadmanager.simulator.traces import read_trace


@pytest.mark.parametrize("types", ["float64", "int64", "float32", "uint8"])
@pytest.mark.parametrize(
    "texts", [pa.string(), pa.large_string(), pa.dictionary("int32", "string")]
)
def test_parquet_of_any_number_type_is_the_same(
    tmp_path: Path, types: str, texts: pa.DataType
) -> None:
    names, *rows = [line.split(",") for line in SOUND.splitlines()]
    columns = {
        name: pa.array(
            [row[at] if name == "topic" else float(row[at]) for row in rows],
            type=pa.string() if name == "topic" else pa.float64(),
        ).cast(texts if name == "topic" else types)
        for at, name in enumerate(names)
    }
    path = tmp_path / "rates.parquet"
    parquet.write_table(pa.table(columns), path)
    assert_is_sound(read_trace(path))


@pytest.mark.parametrize("content", [b"", b"PAR1", SOUND.encode(), b"PAR1" + b"x" * 50 + b"PAR1"])
def test_a_file_that_is_no_parquet_is_told(tmp_path: Path, content: bytes) -> None:
    faults = told(csv_file(tmp_path, content, "rates.parquet"))
    assert len(faults) == 1
    assert faults[0].endswith("; expected a Parquet file")


def test_rows_of_parquet_are_told_by_their_number(tmp_path: Path) -> None:
    path = tmp_path / "rates.parquet"
    table = pa.table({"time_s": [0, 0, None], "topic": ["a", None, "c"], "msg_rate_in": [1, -2, 3]})
    parquet.write_table(table, path)
    assert told(path) == [
        "rates.parquet: row 2: topic '' is not valid; expected a name that is not blank",
        "rates.parquet: row 2: msg_rate_in = -2; expected a number from 0 to 1e+15",
        "rates.parquet: row 3: time_s = nan; expected a number from 0 to 1e+11",
    ]


def test_columns_of_parquet_that_are_no_numbers_are_told(tmp_path: Path) -> None:
    path = tmp_path / "rates.parquet"
    parquet.write_table(pa.table({"time_s": ["0"], "topic": [1], "msg_rate_in": [[1]]}), path)
    assert told(path) == [
        "rates.parquet: column time_s is of type string; expected numbers",
        "rates.parquet: column topic is of type int64; expected texts",
        "rates.parquet: column msg_rate_in is of type list<element: int64>; expected numbers",
    ]


def test_parquet_without_its_library_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert told(csv_file(tmp_path, SOUND, "rates.parquet")) == [
        (
            "rates.parquet: Parquet needs pyarrow; expected it installed: "
            "pip install 'loadmanager[simulator]'"
        )
    ]
