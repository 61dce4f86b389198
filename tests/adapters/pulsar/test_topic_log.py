import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.testbed.pulsar_protocol.cursor import Cursor
from tests.testbed.pulsar_protocol.segments import Fenced, SegmentName, Writer, names_in
from tests.testbed.pulsar_protocol.topic_log import LogFull, Position, TopicLog


def contents(log: TopicLog) -> list[bytes]:
    return [log.read(number).payload for number in range(log.first_number, log.end_number)]


def fill(log: TopicLog, *payloads: bytes) -> None:
    for number, payload in enumerate(payloads):
        log.append(1000 + number, 1, payload)


def test_the_next_owner_reads_what_the_last_one_wrote(tmp_path: Path) -> None:
    first = TopicLog(tmp_path, 5)
    fill(first, b"a", b"b")
    first.close()
    second = TopicLog(tmp_path, 6)
    fill(second, b"c")
    assert contents(second) == [b"a", b"b", b"c"]
    positions = [second.read(number).position for number in range(3)]
    assert positions == [Position(5, 0), Position(5, 1), Position(6, 0)]
    assert [second.number(one) for one in positions] == [0, 1, 2]


def test_what_is_read_without_a_close_is_what_a_kill_leaves(tmp_path: Path) -> None:
    fill(TopicLog(tmp_path, 5), b"a", b"b")
    assert contents(TopicLog(tmp_path, 6)) == [b"a", b"b"]


def test_a_former_owner_can_append_nothing_that_counts(tmp_path: Path) -> None:
    first = TopicLog(tmp_path, 5)
    fill(first, b"a")
    second = TopicLog(tmp_path, 6)
    with pytest.raises(Fenced):
        first.append(1, 1, b"late")
    with pytest.raises(Fenced):
        first.save("s", Cursor(0))
    assert contents(second) == [b"a"]
    assert contents(TopicLog(tmp_path, 7)) == [b"a"]


def test_a_former_owner_that_begins_a_new_file_is_stopped_too(tmp_path: Path) -> None:
    first = TopicLog(tmp_path, 5, roll_bytes=0)
    TopicLog(tmp_path, 6)
    with pytest.raises(Fenced):
        first.append(1, 1, b"late")
    assert contents(TopicLog(tmp_path, 7)) == []


def test_a_lower_token_than_one_seen_is_refused(tmp_path: Path) -> None:
    fill(TopicLog(tmp_path, 6), b"a")
    with pytest.raises(Fenced, match="later owner"):
        TopicLog(tmp_path, 5)
    assert contents(TopicLog(tmp_path, 7)) == [b"a"]


def test_the_same_token_may_come_back_and_counts_on(tmp_path: Path) -> None:
    """A lease was lost and given again: nobody else had the lock."""
    first = TopicLog(tmp_path, 5)
    fill(first, b"a")
    again = TopicLog(tmp_path, 5)
    with pytest.raises(Fenced):
        first.append(1, 1, b"late")
    fill(again, b"b")
    assert again.read(1).position == Position(5, 1)
    assert contents(TopicLog(tmp_path, 6)) == [b"a", b"b"]


def test_two_who_open_at_the_same_place_are_not_both_let_in(tmp_path: Path) -> None:
    name = SegmentName(5, 1, 0)
    Writer(tmp_path, name)
    with pytest.raises(Fenced, match="already"):
        Writer(tmp_path, name)


@given(cut=st.integers(1, 30))
def test_a_record_that_broke_off_is_left_out(
    cut: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    fill(TopicLog(folder, 5), b"whole", b"x" * 30)
    (file,) = folder.iterdir()
    os.truncate(file, file.stat().st_size - cut)
    assert contents(TopicLog(folder, 6)) == [b"whole"]


def test_a_closed_log_touches_no_file(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, 5)
    fill(log, b"a")
    log.close()
    log.close()
    with pytest.raises(Fenced, match="is closed"):
        log.read(0)
    with pytest.raises(Fenced, match="is closed"):
        log.append(1, 1, b"b")


def test_subscriptions_are_kept_with_their_holes(tmp_path: Path) -> None:
    first = TopicLog(tmp_path, 5)
    fill(first, *(b"%d" % number for number in range(8)))
    first.save("s", Cursor(2, [4, 5, 7]))
    first.save("gone", Cursor(1))
    first.forget("gone")
    second = TopicLog(tmp_path, 6)
    cursors = second.cursors
    assert list(cursors) == ["s"]
    assert [number for number in range(9) if number in cursors["s"]] == [0, 1, 4, 5, 7]


def test_a_subscription_that_was_ended_does_not_come_back(tmp_path: Path) -> None:
    first = TopicLog(tmp_path, 5)
    fill(first, b"a")
    first.save("s", Cursor(0))
    second = TopicLog(tmp_path, 6)
    second.forget("s")
    TopicLog(tmp_path, 7)
    assert TopicLog(tmp_path, 8).cursors == {}


def test_files_that_all_have_consumed_are_dropped(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, 5, roll_bytes=100)
    log.save("slow", Cursor(0))
    for number in range(20):
        fill(log, b"%020d" % number)
    assert len(names_in(tmp_path)) > 5
    log.save("quick", Cursor(20))
    log.save("slow", Cursor(13))
    assert 0 < log.first_number <= 13
    assert contents(log)[13 - log.first_number :] == [b"%020d" % number for number in range(13, 20)]
    again = TopicLog(tmp_path, 6)
    assert contents(again)[-7:] == [b"%020d" % number for number in range(13, 20)]
    assert again.cursors["quick"].acked_below == again.end_number


def test_hand_overs_of_an_idle_topic_leave_no_heap_of_files(tmp_path: Path) -> None:
    for token in range(1, 30):
        log = TopicLog(tmp_path, token)
        log.save("s", Cursor(0))
        log.close()
    assert len(names_in(tmp_path)) == 1
    assert list(TopicLog(tmp_path, 30).cursors) == ["s"]


def test_a_topic_takes_no_more_than_its_bound_until_it_is_consumed(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, 5, roll_bytes=100, max_bytes=2000)
    log.save("s", Cursor(0))
    with pytest.raises(LogFull, match="2000 bytes are not consumed"):
        fill(log, *[b"x" * 50] * 100)
    assert log.full
    log.save("s", Cursor(log.end_number))
    assert not log.full
    fill(log, b"x" * 50)


def test_without_subscriptions_the_oldest_make_room(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, 5, roll_bytes=100, max_bytes=2000)
    for number in range(100):
        fill(log, b"%050d" % number)
    assert log.first_number > 0
    assert contents(log)[-1] == b"%050d" % 99
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) <= 2200


def test_entries_are_found_by_time_and_by_place(tmp_path: Path) -> None:
    log = TopicLog(tmp_path, 5)
    fill(log, b"a", b"b", b"c")
    assert [log.number_at(ms) for ms in (0, 1000, 1001, 1002, 1003)] == [0, 0, 1, 2, 3]
    assert log.number(Position(-1, -1)) == 0
    assert log.number(Position(2**63 - 1, 2**63 - 1)) == 3
    assert log.holds(Position(5, 1)) == 1
    assert [log.holds(one) for one in (Position(5, 3), Position(4, 0), Position(6, 0))] == [
        None
    ] * 3


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 60)),
        st.tuples(st.just("ack"), st.integers(0, 40)),
        st.tuples(st.just("open"), st.booleans()),
        st.tuples(st.just("stale"), st.just(0)),
    ),
    max_size=40,
)


@settings(max_examples=60)
@given(steps=STEPS)
def test_nothing_acknowledged_is_lost_however_owners_follow_each_other(
    steps: list[tuple[str, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("log")
    token = 1
    log = TopicLog(folder, token, roll_bytes=150)
    log.save("s", Cursor(0))
    former: TopicLog | None = None
    written: list[bytes] = []
    done: set[bytes] = set()
    for step, number in steps:
        if step == "append":
            written.append(b"%d:" % len(written) + b"x" * number)
            log.append(1, 1, written[-1])
        elif step == "ack":
            below = min(number, log.end_number)
            if below > log.cursors["s"].acked_below:
                done |= set(contents(log)[: max(0, below - log.first_number)])
                log.save("s", Cursor(below))
        elif step == "open":
            if number:
                log.close()
            former, token = log, token + 1
            log = TopicLog(folder, token, roll_bytes=150)
        elif former is not None:
            with pytest.raises(Fenced):
                former.append(1, 1, b"stale")
        kept = contents(log)
        assert kept == written[len(written) - len(kept) :]
        assert set(written) - set(kept) <= done
