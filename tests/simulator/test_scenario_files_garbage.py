"""Whatever stands in a scenario or a trace: it is taken, or told what is wrong with it."""

import gzip
import os
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from loadmanager.config.describe import as_toml
from loadmanager.simulator.scenario import ScenarioError
from loadmanager.simulator.scenario_files import KeyPath as TomlPath
from loadmanager.simulator.scenario_files import load_scenario, shipped
from loadmanager.simulator.traces import read_trace

# HYPOTHESIS_EXAMPLES=5000 looks harder.
EXAMPLES = settings(max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "25")))
TEXTS = {name: path.read_bytes() for name, path in shipped().items()}
CONTENTS: list[dict[str, Any]] = [tomllib.loads(text.decode()) for text in TEXTS.values()]
NUMBERS = (0, -1, 1, 7, 10**9, 2**70, 0.5, float("nan"), float("inf"), -0.0, 1e308, True, False)
WORDS = ("", "small", "a/b", "\0", "é\n\"'", "*", "..")
LISTS: tuple[Any, ...] = ([], [[]], [0], ["broker-1"], [{}], [{"kind": "crash", "at_s": 1}])
TABLES: tuple[Any, ...] = ({}, {"kind": "zipf"}, {"kind": 5}, {"cpu": 1})
ODD = st.sampled_from((*NUMBERS, *WORDS, *LISTS, *TABLES))
"""Values that are right somewhere, and nearly everywhere wrong."""


def paths_in(value: Any, path: TomlPath = ()) -> list[TomlPath]:
    found = [path] if path else []
    inner = enumerate(value) if isinstance(value, list) else ()
    for key, below in value.items() if isinstance(value, dict) else inner:
        found += paths_in(below, (*path, key))
    return found


def changed(value: Any, path: TomlPath, how: str, new: Any) -> Any:
    if len(path) > 1:
        inner = changed(value[path[0]], path[1:], how, new)
        pairs = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        pairs = [(key, inner if key == path[0] else below) for key, below in pairs]
        return dict(pairs) if isinstance(value, dict) else [below for _, below in pairs]
    if isinstance(value, list):
        at = int(path[0])
        middle = {"drop": [], "twice": [value[at]] * 2}.get(how, [new])
        return value[:at] + middle + value[at + 1 :]
    rest = {key: below for key, below in value.items() if key != path[0] or how == "twice"}
    renamed = {f"{path[0]}s": value[path[0]]} if how == "rename" else {}
    return {**rest, **renamed, **({path[0]: new} if how == "replace" else {})}


@st.composite
def documents(draw: st.DrawFn) -> str:
    content = draw(st.sampled_from(CONTENTS))
    for _ in range(draw(st.integers(1, 4))):
        if paths := paths_in(content):
            how = draw(st.sampled_from(["replace", "replace", "drop", "rename", "twice"]))
            content = changed(content, draw(st.sampled_from(paths)), how, draw(ODD))
    return "".join(f"{as_key(key)} = {as_toml(inner)}\n" for key, inner in content.items())


def as_key(key: str) -> str:
    return key if re.fullmatch(r"[-\w]+", key, re.ASCII) else as_toml(key)


@st.composite
def broken(draw: st.DrawFn, texts: list[bytes]) -> bytes:
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(1, 5))):
        at, end = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        end = min(end, at + 30)
        new = draw(
            st.sampled_from([b"", b"\0", b"\xff", b'"', b"[", b"\n", b",", b"-", b"nan", b"9"])
        )
        text = text[:at] + draw(st.sampled_from([new, text[at:end] * 2])) + text[end:]
    return text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text


def faults_of(read: Callable[[Path], object], path: Path) -> tuple[str, ...]:
    try:
        read(path)
    except ScenarioError as error:
        return error.faults or ("an error that tells nothing",)
    return ()


def assert_sound_or_told(path: Path) -> None:
    told = re.compile(re.escape(str(path)) + r": .*(expected|did you mean) ", re.DOTALL)
    assert [fault for fault in faults_of(load_scenario, path) if not told.match(fault)] == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("garbage")


@EXAMPLES
@given(text=documents(), bytes_=broken(list(TEXTS.values())))
def test_changed_and_broken_scenarios_are_sound_or_told(
    folder: Path, text: str, bytes_: bytes
) -> None:
    path = folder / "x.toml"
    for content in (text.encode(), bytes_):
        path.write_bytes(content)
        assert_sound_or_told(path)


ROWS = [(t, f"t-{n % 3}", 10.0 * n) for n, t in enumerate([0, 0, 0, 60, 60, 60, 120, 120, 120])]
CSV = "time_s,topic,msg_rate_in\n" + "".join(f"{t},{topic},{rate}\n" for t, topic, rate in ROWS)


def packed() -> bytes:
    sink = pa.BufferOutputStream()
    columns = dict(zip(["time_s", "topic", "msg_rate_in"], zip(*ROWS, strict=True), strict=True))
    parquet.write_table(pa.table({name: list(cells) for name, cells in columns.items()}), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def assert_read_or_told(path: Path) -> None:
    told = re.compile(re.escape(str(path)) + r": ?.*(expected|only the first) ", re.DOTALL)
    assert [fault for fault in faults_of(read_whole, path) if not told.match(fault)] == []


def read_whole(path: Path) -> None:
    trace = read_trace(path)
    assert trace.rates.shape == (len(trace.times_s), len(trace.topics), 4)
    assert trace.times_s[0] == 0
    assert np.all(np.diff(trace.times_s) > 0)
    assert np.all(np.isfinite(trace.rates) & (trace.rates >= 0))


TRACES = {
    "csv": CSV.encode(),
    "csv.gz": gzip.compress(CSV.encode(), mtime=0),
    "parquet": packed(),
}
"""Of a file's kind. Parquet's reader is not ours: it is to be tried, and not to surprise."""


@pytest.mark.parametrize("kind", TRACES)
def test_broken_traces_are_read_or_told(folder: Path, kind: str) -> None:
    path = folder / f"x.{kind}"

    @settings(EXAMPLES, derandomize=kind == "parquet")
    @given(text=broken([TRACES[kind]]))
    def tried(text: bytes) -> None:
        path.write_bytes(text)
        assert_read_or_told(path)

    tried()
