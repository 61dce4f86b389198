import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.bounds import TIMES_END_MS
from loadmanager.core.errors import MalformedContent
from loadmanager.core.wire.records import DrainMark, decode_drain_mark, encode_drain_mark


@given(since_ms=st.integers(0, TIMES_END_MS - 1), by=st.text(), reason=st.text())
def test_a_mark_reads_back_as_it_was_written(since_ms: int, by: str, reason: str) -> None:
    mark = DrainMark(since_ms=since_ms, by=by, reason=reason)
    assert decode_drain_mark("/m", encode_drain_mark(mark)) == mark


def test_what_is_missing_in_a_mark_is_nothing() -> None:
    assert decode_drain_mark("/m", b"{}") == DrainMark()


@pytest.mark.parametrize("data", [b"", b"[]", b'{"by":3}', b'{"sinceMs":"x"}', b'{"sinceMs":-1}'])
def test_spoilt_marks_are_refused_with_their_path(data: bytes) -> None:
    with pytest.raises(MalformedContent, match="/m"):
        decode_drain_mark("/m", data)
