"""Lines of files that are whole, and of files that are not."""

import gzip
import os

import pytest

from loadmanager.pipeline.ingest import unpacking
from loadmanager.pipeline.ingest.unpacking import Line, lines_of


def members(*contents: bytes) -> bytes:
    return b"".join(gzip.compress(content, mtime=0) for content in contents)


def read(content: bytes) -> list[Line]:
    return list(lines_of(memoryview(content)))


def test_members_are_one_stream_of_lines() -> None:
    assert read(members(b"a\nb", b"c\n", b"", b"d\n")) == [Line(b"a"), Line(b"bc"), Line(b"d")]


def test_what_stands_behind_the_last_line_feed_is_a_line() -> None:
    assert read(members(b"a\nb")) == [Line(b"a"), Line(b"b")]


def test_an_empty_member_has_no_line() -> None:
    assert read(members(b"")) == []


def test_zeros_behind_the_last_member_are_padding() -> None:
    assert read(members(b"a\n") + b"\0" * 512) == [Line(b"a")]


@pytest.mark.parametrize("missing", [1, 8, 20])
def test_a_truncated_file_gives_the_members_before_and_says_where_it_ends(missing: int) -> None:
    content = members(b"a\nb\n", b"c\n")[:-missing]
    *sound, last = read(content)
    assert sound[:2] == [Line(b"a"), Line(b"b")]
    assert last.fault == f"the file ends within a gzip member, after {len(content)} bytes"


def test_within_a_member_lines_are_read_up_to_the_break() -> None:
    noise = [os.urandom(30).hex().encode() for _ in range(10_000)]
    content = members(b"\n".join(noise))
    *sound, last = read(content[: len(content) // 2])
    assert 4000 < len(sound) < 6000
    assert [one.content for one in sound] == noise[: len(sound)]
    assert noise[len(sound)].startswith(last.content)
    assert last.fault is not None


def test_damage_in_the_middle_costs_what_comes_after_it() -> None:
    content = bytearray(members(b"a\n", b"b\n" * 50_000, b"c\n"))
    content[60] ^= 0xFF
    *sound, last = read(bytes(content))
    assert sound[0] == Line(b"a")
    assert last.fault is not None
    assert last.fault.startswith("the file is damaged between bytes ")
    assert last.fault.endswith("; expected gzip")


def test_what_is_no_gzip_is_told() -> None:
    (line,) = read(b'{"schema":1}\n')
    assert line.fault is not None
    assert "incorrect header check" in line.fault


def test_garbage_behind_the_last_member_is_told() -> None:
    *sound, last = read(members(b"a\n") + b"garbage")
    assert sound == [Line(b"a")]
    assert last.fault is not None


def test_an_empty_file_is_told() -> None:
    assert read(b"") == [Line(b"", "the file is empty; expected gzip")]


def test_a_line_without_end_does_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "LONGEST_LINE_BYTES", 100_000)
    endless = os.urandom(400_000).replace(b"\n", b" ")
    first, endless_line, last = read(members(b"a\n" + endless + b"\nb\n"))
    assert (first, last) == (Line(b"a"), Line(b"b"))
    assert endless_line.fault == "a line of more than 100000 bytes"
    assert len(endless_line.content) < 300_000


def test_a_line_without_end_at_the_end_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "LONGEST_LINE_BYTES", 100_000)
    endless = os.urandom(400_000).replace(b"\n", b" ")
    first, last = read(members(b"a\n" + endless))
    assert first == Line(b"a")
    assert last.fault == "a line of more than 100000 bytes"
