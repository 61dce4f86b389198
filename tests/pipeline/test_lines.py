"""What is a line of history is decided by the strict reader, wherever lines are read."""

import json
from typing import Any

import pyarrow as pa
import pytest
from history_lines import BUNDLES, SPOILT, UNUSUAL, Spoil, cut, line, packed, report
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.schema import KINDS
from loadmanager.pipeline.ingest.lines import SHOWN_CHARACTERS, parts_of

FILE = "date=2026-01-05/hour=12/reports-b1_8080-ab12-000000000001.jsonl.gz"


def read(*contents: bytes) -> list[dict[str, Any]]:
    batch = pa.RecordBatch.from_pydict(
        {"path": [f"file:/some/where/{FILE}"] * len(contents), "content": list(contents)}
    )
    return [
        {"part": part, **row} for part, rows in parts_of(iter([batch])) for row in rows.to_pylist()
    ]


def rows_of(part: str, *contents: bytes) -> list[dict[str, Any]]:
    return [row for row in read(*contents) if row["part"] == part]


def verdict(content: bytes) -> str | None:
    try:
        read_line("", content)
    except MalformedContent as error:
        return str(error).removeprefix(": ")
    return None


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_a_spoilt_line_is_refused_in_the_words_of_the_strict_reader(spoil: Spoil) -> None:
    spoilt = spoil(report(2))
    rows = read(packed([line(report(1)), spoilt, line(report(3))]))
    told = {row["line"]: row["content"] for row in rows if row["part"] == "lines"}
    assert verdict(spoilt) is not None
    assert told[2]["fault"] == verdict(spoilt)
    assert told[2]["text"] == spoilt.decode(errors="replace")[:SHOWN_CHARACTERS]
    assert told[1]["fault"] is None
    assert told[3]["fault"] is None
    assert {row["line"] for row in rows if row["part"] == "bundle_load"} == {1, 3}


@pytest.mark.parametrize("change", UNUSUAL.values(), ids=UNUSUAL)
def test_an_unusual_line_is_taken_with_all_it_says(change: Spoil) -> None:
    content = change(report(7))
    found = read_line("", content)
    rows = read(packed([content]))
    (told,) = [row for row in rows if row["part"] == "lines"]
    assert (told["file"], told["line"], told["content"]["fault"]) == (FILE, 1, None)
    plain = json.loads(told["content"]["text"])
    assert plain.pop("bundle_count") == len(found["bundles"]["bundle"])
    known = {*KINDS["report"].added, *report(1)}
    assert plain == {name: found[name] for name in known if name != "bundles"}
    bundles = [row for row in rows if row["part"] == "bundle_load"]
    for name, values in found["bundles"].items():
        assert [row[name] for row in bundles] == [
            float(one) if name.endswith("per_s") else one for one in values
        ]
    for name in ("cluster", "writer", "instance", "seq", "at_ms", "broker", "interval_s"):
        assert {row[name] for row in bundles} <= {found[name]}


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(2**62, 2**65),
    st.floats(),
    st.text(max_size=3),
    st.lists(
        st.one_of(st.none(), st.integers(-1, 3), st.floats(), st.text(max_size=2)), max_size=3
    ),
    st.dictionaries(st.sampled_from(["bundle", "topics"]), st.lists(st.integers(), max_size=2)),
)


@given(
    name=st.sampled_from(sorted(report(1))),
    inner=st.sampled_from([None, *sorted(report(1)["bundles"])]),
    value=values,
)
def test_workers_and_strict_readers_agree(name: str, inner: str | None, value: object) -> None:
    fields = report(1)
    place = fields if inner is None else fields["bundles"]
    place[name if inner is None else inner] = value
    content = line(fields)
    (told,) = rows_of("lines", packed([content]))
    assert told["content"]["fault"] == verdict(content)


def test_lines_of_the_other_stream_are_taken_for_what_they_are() -> None:
    (told,) = rows_of("lines", packed([cut(5)]))
    assert (told["content"]["kind"], told["seq"]) == ("cut", 5)
    assert json.loads(told["content"]["text"])["parts"] == list(BUNDLES)


def test_every_file_is_told_with_its_last_line_even_an_empty_one() -> None:
    found = rows_of("files", packed([line(report(1)), b"x"]), packed([]), packed([cut(1)]))
    assert [(row["file"], row["line"]) for row in found] == [(FILE, 2), (FILE, 1), (FILE, 1)]


def test_more_rows_than_are_given_away_at_once_all_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, least in (("_ROWS_AT_ONCE", 20), ("_TEXT_AT_ONCE", 4096)):
        monkeypatch.setattr(f"loadmanager.pipeline.ingest.lines.{name}", least)
    rows = read(packed([line(report(seq)) for seq in range(1, 101)]))
    assert sorted(row["seq"] for row in rows if row["part"] == "lines") == list(range(1, 101))
    assert sum(row["part"] == "bundle_load" for row in rows) == 200
