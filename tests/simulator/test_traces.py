import gzip
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from trace_files import SOUND, assert_is_sound, csv_file, told

from loadmanager.simulator import traces
from loadmanager.simulator.scenario_files import load_scenario, shipped
from loadmanager.simulator.traces import read_trace

NAMES = "time_s, topic, msg_rate_in, msg_rate_out, msg_throughput_in, msg_throughput_out"


@pytest.mark.parametrize(
    "text",
    [
        SOUND,
        SOUND.replace("\n", "\r\n"),
        "\ufeff" + SOUND,
        SOUND.rstrip(),
        SOUND.replace("\n", "\n\n"),
        SOUND.replace("a,", '"a",'),
        SOUND.replace("topic,", " topic ,"),
    ],
)
def test_rows_become_rates_of_topics_at_times_that_begin_with_0(tmp_path: Path, text: str) -> None:
    assert_is_sound(read_trace(csv_file(tmp_path, text)))


def test_columns_stand_in_any_order_and_the_file_may_be_compressed(tmp_path: Path) -> None:
    rows = [line.split(",") for line in SOUND.splitlines()]
    text = "\n".join(",".join(reversed(row)) for row in rows)
    assert_is_sound(read_trace(csv_file(tmp_path, text)))
    packed = gzip.compress(SOUND.encode())
    assert_is_sound(read_trace(csv_file(tmp_path, packed, "rates.csv.gz")))
    cut = csv_file(tmp_path, packed[:-12], "rates.csv.gz")
    assert told(cut)[0].startswith("rates.csv.gz: Compressed file ended before")
    plain = csv_file(tmp_path, SOUND, "rates.csv.gz")
    assert told(plain)[0].startswith("rates.csv.gz: Not a gzipped file")


@pytest.mark.parametrize(
    ("columns", "row", "rates"),
    [
        ("msg_rate_in", "3", [3, 3, 3072, 3072]),
        ("msg_rate_out", "3", [3, 3, 3072, 3072]),
        ("msg_throughput_in", "2048", [2, 2, 2048, 2048]),
        ("msg_throughput_out", "2048", [2, 2, 2048, 2048]),
        ("msg_rate_in,msg_throughput_in", "3,10", [3, 3, 10, 10]),
        ("msg_rate_in,msg_rate_out", "3,6", [3, 6, 3072, 6144]),
        ("msg_rate_in,msg_throughput_out", "3,1024", [3, 1, 3072, 1024]),
        ("msg_throughput_in,msg_throughput_out", "1024,2048", [1, 2, 1024, 2048]),
        ("msg_rate_in,msg_rate_out,msg_throughput_in", "3,6,9", [3, 6, 9, 6144]),
    ],
)
def test_columns_that_are_missing_are_derived(
    tmp_path: Path, columns: str, row: str, rates: list[float]
) -> None:
    path = csv_file(tmp_path, f"time_s,topic,{columns}\n0,a,{row}\n")
    assert read_trace(path).rates.tolist() == [[rates]]


HEAD = "time_s,topic,msg_rate_in\n"
FAULTS = Path(__file__).with_name("trace_faults.txt").read_text("utf-8").replace("NAMES", NAMES)


@pytest.mark.parametrize("case", FAULTS.split("--\n")[1:])
def test_each_fault_is_told_with_its_line(tmp_path: Path, case: str) -> None:
    text, *faults = case.split("=> ")
    assert told(csv_file(tmp_path, text)) == [fault.rstrip("\n") for fault in faults]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", f": is empty; expected columns {NAMES}"),
        (
            HEAD.encode() + b"0,a,1\n0,\xff,1\n",
            ": the byte 0xff is not UTF-8; expected text in UTF-8",
        ),
        (
            HEAD.encode() + b"0," + b"a" * 2_000_000 + b",1\n",
            ":2: field larger than field limit (131072); expected CSV",
        ),
    ],
    ids=["empty", "no text", "long"],
)
def test_what_is_no_table_is_told(tmp_path: Path, content: bytes, fault: str) -> None:
    assert told(csv_file(tmp_path, content)) == [f"rates.csv{fault}"]


def test_of_very_many_faults_the_first_are_told(tmp_path: Path) -> None:
    faults = told(csv_file(tmp_path, HEAD + "0,a,-1\n" * 1000))
    assert len(faults) == 21
    assert faults[-1] == "rates.csv: and perhaps more; only the first 20 are looked for"


def test_a_file_that_is_not_there_or_of_another_kind_is_told(tmp_path: Path) -> None:
    kinds = ".csv, .csv.gz, .parquet, .pq"
    faults = told(csv_file(tmp_path, SOUND, "a.json"))
    assert faults == [f"a.json: expected a file that ends in {kinds}"]
    missing = "No such file or directory; expected a readable file"
    assert told(tmp_path / "b.csv") == [f"b.csv: {missing}"]
    folder = tmp_path / "c.csv"
    folder.mkdir()
    assert told(folder) == ["c.csv: Is a directory; expected a readable CSV file"]
    folder = folder.rename(tmp_path / "d.parquet")
    assert told(folder)[0].endswith("; expected a readable Parquet file")


def test_a_file_of_too_many_rows_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MAX_ROWS", 3)
    assert told(csv_file(tmp_path, SOUND)) == ["rates.csv: more rows; expected up to 3"]


def test_a_trace_is_read_again_when_its_file_has_changed(tmp_path: Path) -> None:
    path = csv_file(tmp_path, SOUND)
    first = read_trace(path)
    assert read_trace(path) is first
    csv_file(tmp_path, SOUND.replace("40", "400"))
    assert read_trace(path).rates[1, 0, 3] == 400
    with pytest.raises(ValueError, match="read-only"):
        first.rates[:] = 0


def test_rows_in_parts_are_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "_PART_ROWS", 7)
    times, topics = 20, 15
    rates = np.random.default_rng(1).integers(0, 1000, (times, topics))
    lines = [f"{t},é-{n},{rates[t, n]}" for t in range(times) for n in range(topics)]
    text = HEAD + "\n".join(lines) + "\n"
    packed = tmp_path / "rates.parquet"
    parquet.write_table(csv.read_csv(csv_file(tmp_path, text)), packed)
    for trace in (read_trace(tmp_path / "rates.csv"), read_trace(packed)):
        assert np.array_equal(trace.rates[:, :, 0], rates)
        assert trace.topics == tuple(f"persistent://public/default/é-{n}" for n in range(topics))
    faults = told(csv_file(tmp_path, text + "19,é-0,1\n18,x,-1"))
    assert [fault.partition(" ")[0] for fault in faults] == ["rates.csv:303:", "rates.csv:303:"]


def test_the_shipped_example_is_sound() -> None:
    scenario = load_scenario(shipped()["trace-example"])
    assert scenario.trace is not None
    trace = read_trace(scenario.trace)
    assert trace.rates.shape == (24, 24, 4)
    assert trace.times_s[-1] < scenario.duration_s


@pytest.mark.parametrize("types", ["float64", "int64", "float32", "uint8"])
@pytest.mark.parametrize(
    "texts", [pa.string(), pa.large_string(), pa.dictionary("int32", "string")]
)
def test_parquet_of_any_number_is_the_same(tmp_path: Path, types: str, texts: pa.DataType) -> None:
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


@pytest.mark.parametrize(
    ("columns", "faults"),
    [
        (
            {"time_s": [0, 0, None], "topic": ["a", None, "c"], "msg_rate_in": [1, -2, 3]},
            [
                "row 2: topic '' is not valid; expected a name that is not blank",
                "row 2: msg_rate_in = -2; expected a number from 0 to 1e+15",
                "row 3: time_s = nan; expected a number from 0 to 1e+11",
            ],
        ),
        (
            {"time_s": ["0"], "topic": [1], "msg_rate_in": [[1]]},
            [
                "column time_s is of type string; expected numbers",
                "column topic is of type int64; expected texts",
                "column msg_rate_in is of type list<element: int64>; expected numbers",
            ],
        ),
    ],
)
def test_rows_of_parquet_are_told_by_their_number_and_types_by_their_column(
    tmp_path: Path, columns: dict[str, list[object]], faults: list[str]
) -> None:
    path = tmp_path / "rates.parquet"
    parquet.write_table(pa.table(columns), path)
    assert told(path) == [f"rates.parquet: {fault}" for fault in faults]


def test_without_its_library_it_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert told(csv_file(tmp_path, SOUND, "rates.parquet")) == [
        (
            "rates.parquet: Parquet needs pyarrow; expected it installed: "
            "pip install 'loadmanager[simulator]'"
        )
    ]
