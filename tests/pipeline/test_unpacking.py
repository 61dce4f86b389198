"""Lines of files that are whole, and of files that are not."""

import gzip
import os

import pytest

from loadmanager.pipeline.ingest import lines
from loadmanager.pipeline.ingest.lines import Line, lines_of


def members(*contents: bytes) -> bytes:
    return b"".join(gzip.compress(content, mtime=0) for content in contents)


def read(content: bytes) -> list[Line]:
    return list(lines_of(memoryview(content)))


A = members(b"a\n")


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        pytest.param(members(b"a\nb", b"c\n", b"", b"d\n"), [b"a", b"bc", b"d"], id="members"),
        pytest.param(members(b"a\nb"), [b"a", b"b"], id="no line feed at the end"),
        pytest.param(members(b""), [], id="an empty member"),
        pytest.param(A + b"\0" * 512, [b"a"], id="zeros as padding"),
    ],
)
def test_a_sound_file_is_one_stream_of_lines(content: bytes, lines: list[bytes]) -> None:
    assert read(content) == [Line(one) for one in lines]


@pytest.mark.parametrize(
    ("content", "before", "fault"),
    [
        pytest.param(b'{"schema":1}\n', [], "incorrect header check", id="no gzip"),
        pytest.param(A + b"garbage", [b"a"], "", id="garbage behind the last member"),
        pytest.param(b"", [], "the file is empty; expected gzip", id="empty"),
    ],
)
def test_what_is_not_gzip_is_told(content: bytes, before: list[bytes], fault: str) -> None:
    *sound, last = read(content)
    assert sound == [Line(one) for one in before]
    assert last.fault is not None
    assert fault in last.fault


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


@pytest.mark.parametrize("after", [[], [b"b"]], ids=["at the end", "before others"])
def test_a_line_without_end_is_told_once_and_does_not_fill_the_memory(
    after: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "LONGEST_LINE_BYTES", 100_000)
    endless = os.urandom(400_000).replace(b"\n", b" ")
    ending = b"".join(b"\n%b\n" % one for one in after)
    first, endless_line, *rest = read(members(b"a\n" + endless + ending))
    assert (first, rest) == (Line(b"a"), [Line(one) for one in after])
    assert endless_line.fault == "a line of more than 100000 bytes"
    assert len(endless_line.content) < 300_000
