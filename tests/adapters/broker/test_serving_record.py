import math
import resource
from dataclasses import replace
from pathlib import Path

import pytest
from timed_broker import TimedBroker

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import parse_bundle
from loadmanager.reference_broker.changes import (
    BundleLoaded,
    Change,
    EndReason,
    LeaseGranted,
    LeaseLost,
    RecordFile,
    ServingEnded,
    ServingInterval,
    Started,
    Stopped,
    UnloadBegun,
    intervals_of,
    read_record,
)

BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")
STARTED = Started(at_s=1.0, broker="b1:8080", incarnation="i1")
LEASE = LeaseGranted(at_s=2.0, agent_epoch=3, until_s=10.0)
LOADED = BundleLoaded(at_s=3.0, bundle=BUNDLE, fencing_token=7, agent_epoch=3)
UNLOADING = UnloadBegun(at_s=4.0, bundle=BUNDLE, fencing_token=7)
ENDED = ServingEnded(
    at_s=5.0,
    bundle=BUNDLE,
    fencing_token=7,
    agent_epoch=3,
    start_s=3.0,
    end_s=5.0,
    why=EndReason.UNLOADED,
)
SERVED = ServingInterval(
    broker="b1:8080",
    incarnation="i1",
    bundle=BUNDLE,
    fencing_token=7,
    agent_epoch=3,
    start_s=3.0,
    end_s=5.0,
    why=EndReason.UNLOADED,
)
CUT_OFF = replace(SERVED, why=EndReason.NOT_RECORDED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def write(path: Path, *changes: Change) -> None:
    record = RecordFile(path)
    for change in changes:
        record.write(change)
    record.close()


def test_every_change_comes_back_as_it_was_written(path: Path) -> None:
    lost = LeaseLost(at_s=11.0, agent_epoch=3, until_s=10.0)
    write(path, STARTED, LEASE, LOADED, UNLOADING, ENDED, lost, Stopped(at_s=12.0))
    assert read_record(path, died_at_s=None) == [SERVED]
    assert path.read_text().splitlines()[2] == (
        '{"at_s":3.0,"bundle":"t/n/0x00000000_0xffffffff","fencing_token":7,"agent_epoch":3,'
        '"event":"load"}'
    )


def test_a_line_is_in_the_file_before_the_next_is_written(path: Path) -> None:
    record = RecordFile(path)
    record.write(STARTED)
    assert path.read_text().count("\n") == 1
    record.close()


def test_a_full_disk_is_an_error() -> None:
    record = RecordFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        record.write(STARTED)
    record.close()


def test_an_end_that_found_no_room_is_written_when_there_is_some(path: Path) -> None:
    lease = LeaseGranted(at_s=1.5, agent_epoch=1, until_s=9.0)
    load = BundleLoaded(at_s=2.0, bundle=BUNDLE, fencing_token=7, agent_epoch=1)
    lost = LeaseLost(at_s=3.0, agent_epoch=1, until_s=3.0)
    ended = ServingEnded(
        at_s=3.0,
        bundle=BUNDLE,
        fencing_token=7,
        agent_epoch=1,
        start_s=2.0,
        end_s=3.0,
        why=EndReason.LEASE_LOST,
    )
    record = RecordFile(path)
    for change in (STARTED, lease, load):
        record.write(change)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 10, unlimited[1]))
    try:
        record.write(lost)
        record.write(ended)
        with pytest.raises(OSError, match="disk full"):
            record.write(lease)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    record.write(Stopped(at_s=4.0))
    record.close()
    (interval,) = read_record(path, None)
    assert (interval.end_s, interval.why) == (3.0, EndReason.LEASE_LOST)
    assert path.read_text().count("\n") == 6


def test_half_a_line_is_an_error(path: Path) -> None:
    record = RecordFile(path)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, unlimited[1]))
    try:
        with pytest.raises(OSError, match=r"wrote 10 of \d+ bytes"):
            record.write(STARTED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
        record.close()


def test_a_truncated_last_line_is_ignored(path: Path) -> None:
    write(path, STARTED, LEASE, LOADED, ENDED)
    path.write_bytes(path.read_bytes()[:-5])
    assert read_record(path, died_at_s=6.0) == [replace(CUT_OFF, end_s=6.0)]


def test_a_broken_line_before_the_last_is_told(path: Path) -> None:
    write(path, STARTED)
    path.write_bytes(b'{"event":"start"}\n' + path.read_bytes())
    with pytest.raises(MalformedContent, match=r"record\.jsonl:1: .*at_s.*Field required"):
        read_record(path, died_at_s=None)


def test_a_line_that_is_no_json_is_told(path: Path) -> None:
    path.write_bytes(b"hello\n")
    with pytest.raises(MalformedContent, match=r"record\.jsonl:1: line in b'hello'"):
        read_record(path, died_at_s=None)


def test_an_empty_file_served_nothing(path: Path) -> None:
    path.touch()
    assert read_record(path, died_at_s=None) == []


def test_a_killed_process_served_until_it_was_dead() -> None:
    assert intervals_of([STARTED, LEASE, LOADED], 6.0) == [replace(CUT_OFF, end_s=6.0)]


def test_a_killed_process_served_no_longer_than_its_lease() -> None:
    assert intervals_of([STARTED, LEASE, LOADED], 60.0) == [replace(CUT_OFF, end_s=10.0)]


def test_a_renewed_lease_counts() -> None:
    renewed = replace(LEASE, at_s=4.0, until_s=20.0)
    changes: list[Change] = [STARTED, LEASE, LOADED, renewed]
    assert intervals_of(changes, 15.0) == [replace(CUT_OFF, end_s=15.0)]


def test_the_lease_of_another_agent_does_not_count() -> None:
    other = LeaseGranted(at_s=4.0, agent_epoch=4, until_s=20.0)
    changes: list[Change] = [STARTED, LEASE, LOADED, other]
    assert intervals_of(changes, 15.0) == [replace(CUT_OFF, end_s=10.0)]


def test_a_process_lived_at_least_until_its_last_line() -> None:
    changes: list[Change] = [STARTED, LEASE, LOADED, UNLOADING]
    assert intervals_of(changes, 2.0) == [replace(CUT_OFF, end_s=4.0)]


def test_a_living_process_may_serve_until_its_lease_ends() -> None:
    assert intervals_of([STARTED, LEASE, LOADED], None) == [replace(CUT_OFF, end_s=10.0)]


def test_without_any_lease_nothing_says_when_serving_ended() -> None:
    assert intervals_of([STARTED, LOADED], None) == [replace(CUT_OFF, end_s=math.inf)]


def test_a_stop_ends_everything() -> None:
    stopped = Stopped(at_s=5.0)
    assert intervals_of([STARTED, LEASE, LOADED, ENDED, stopped], None) == [SERVED]


def test_the_lives_of_a_broker_follow_each_other_in_one_file() -> None:
    again = Started(at_s=8.0, broker="b1:8080", incarnation="i2")
    lease = LeaseGranted(at_s=8.5, agent_epoch=3, until_s=20.0)
    loaded = replace(LOADED, at_s=9.0)
    got = intervals_of([STARTED, LEASE, LOADED, again, lease, loaded], 12.0)
    assert got == [
        replace(CUT_OFF, end_s=8.0),
        replace(CUT_OFF, incarnation="i2", start_s=9.0, end_s=12.0),
    ]


def test_a_record_that_does_not_begin_with_a_start_is_refused() -> None:
    with pytest.raises(MalformedContent, match=r"change 1 is LeaseGranted.*expected a start"):
        intervals_of([LEASE], None)


def test_no_changes_are_no_intervals() -> None:
    assert intervals_of([], None) == []


def test_a_record_broken_off_anywhere_never_shows_less_serving_than_there_was() -> None:
    changes: list[Change] = []
    broker = TimedBroker(changes.append, now_s=0.0)
    broker.at(1.0).renew_lease(agent_epoch=1, until_s=10.0, incarnation="i1")
    broker.at(2.0).load(BUNDLE, agent_epoch=1, fencing_token=5)
    broker.at(4.0).load(BUNDLE, agent_epoch=1, fencing_token=6)
    broker.at(12.0).expire()
    # From the load on, each broken-off record covers 2.0 up to where it broke off.
    for length in range(3, len(changes) + 1):
        part = changes[:length]
        got = intervals_of(part, died_at_s=part[-1].at_s)
        end_s = min(part[-1].at_s, 10.0)
        assert min(one.start_s for one in got) == 2.0
        assert max(one.end_s for one in got) == end_s
        assert sum(one.end_s - one.start_s for one in got) == end_s - 2.0
