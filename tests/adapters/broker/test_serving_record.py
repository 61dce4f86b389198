import math
import resource
from collections.abc import Iterator
from contextlib import contextmanager
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
LOST = LeaseLost(at_s=11.0, agent_epoch=3, until_s=10.0)
GRANT = {"bundle": BUNDLE, "fencing_token": 7, "agent_epoch": 3, "start_s": 3.0, "end_s": 5.0}
ENDED = ServingEnded(at_s=5.0, why=EndReason.UNLOADED, **GRANT)  # type: ignore[arg-type] # by name
SERVED = ServingInterval(broker="b1:8080", incarnation="i1", why=EndReason.UNLOADED, **GRANT)  # type: ignore[arg-type] # the same
CUT_OFF = replace(SERVED, why=EndReason.NOT_RECORDED)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.jsonl"


def write(path: Path, *changes: Change) -> None:
    record = RecordFile(path)
    for number, one in enumerate(changes, 1):
        record.write(one)
        assert path.read_bytes().count(b"\n") == number  # before the next is written
    record.close()


@contextmanager
def most_bytes(count: int) -> Iterator[None]:
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, unlimited[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)


def test_every_change_comes_back_as_it_was_written(path: Path) -> None:
    write(path, STARTED, LEASE, LOADED, UNLOADING, ENDED, LOST, Stopped(at_s=12.0))
    assert read_record(path, died_at_s=None) == [SERVED]
    assert path.read_text().splitlines()[2] == (
        '{"at_s":3.0,"bundle":"t/n/0x00000000_0xffffffff","fencing_token":7,"agent_epoch":3,'
        '"event":"load"}'
    )


def test_a_full_disk_is_an_error(path: Path) -> None:
    record = RecordFile(Path("/dev/full"))
    with pytest.raises(OSError, match="No space left"):
        record.write(STARTED)
    record.close()
    record = RecordFile(path)
    with most_bytes(10), pytest.raises(OSError, match=r"wrote 10 of \d+ bytes"):
        record.write(STARTED)
    record.close()


def test_an_end_that_found_no_room_is_written_when_there_is_some(path: Path) -> None:
    ended = replace(ENDED, at_s=11.0, end_s=10.0, why=EndReason.LEASE_LOST)
    record = RecordFile(path)
    for one in (STARTED, LEASE, LOADED):
        record.write(one)
    with most_bytes(path.stat().st_size + 10):
        record.write(LOST)
        record.write(ended)
        with pytest.raises(OSError, match="disk full"):
            record.write(LEASE)
    record.write(Stopped(at_s=12.0))
    record.close()
    (interval,) = read_record(path, None)
    assert (interval.end_s, interval.why) == (10.0, EndReason.LEASE_LOST)
    assert path.read_text().count("\n") == 6


def test_what_a_file_may_hold(path: Path) -> None:
    path.touch()
    assert read_record(path, died_at_s=None) == []
    write(path, STARTED, LEASE, LOADED, ENDED)
    path.write_bytes(path.read_bytes()[:-5])  # the last line is truncated
    assert read_record(path, died_at_s=6.0) == [replace(CUT_OFF, end_s=6.0)]
    path.write_bytes(b'{"event":"start"}\n' + path.read_bytes())
    with pytest.raises(MalformedContent, match=r"record\.jsonl:1: .*at_s.*Field required"):
        read_record(path, died_at_s=None)
    path.write_bytes(b"hello\n")
    with pytest.raises(MalformedContent, match=r"record\.jsonl:1: line in b'hello'"):
        read_record(path, died_at_s=None)


RENEWED = replace(LEASE, at_s=4.0, until_s=20.0)
AGAIN = replace(STARTED, at_s=8.0, incarnation="i2")


@pytest.mark.parametrize(
    ("changes", "died_at_s", "found"),
    [
        pytest.param([], None, [], id="no changes"),
        pytest.param([LEASE, LOADED], 6.0, [6.0], id="a killed process served until it was dead"),
        pytest.param([LEASE, LOADED], 60.0, [10.0], id="no longer than its lease"),
        pytest.param([LEASE, LOADED, RENEWED], 15.0, [15.0], id="a renewed lease counts"),
        pytest.param(
            [LEASE, LOADED, replace(RENEWED, agent_epoch=4)], 15.0, [10.0], id="another agent's not"
        ),
        pytest.param([LEASE, LOADED, UNLOADING], 2.0, [4.0], id="it lived until its last line"),
        pytest.param([LEASE, LOADED], None, [10.0], id="a living process, until its lease ends"),
        pytest.param([LOADED], None, [math.inf], id="without any lease nobody knows"),
        pytest.param([LEASE, LOADED, ENDED, Stopped(at_s=5.0)], None, [SERVED], id="a stop"),
        pytest.param(
            [LEASE, LOADED, AGAIN, replace(RENEWED, at_s=8.5), replace(LOADED, at_s=9.0)],
            12.0,
            [8.0, replace(CUT_OFF, incarnation="i2", start_s=9.0, end_s=12.0)],
            id="the lives of a broker follow each other",
        ),
    ],
)
def test_a_record_is_read_as_the_most_that_can_have_been_served(
    changes: list[Change], died_at_s: float | None, found: list[float | ServingInterval]
) -> None:
    wanted = [replace(CUT_OFF, end_s=one) if isinstance(one, float) else one for one in found]
    assert intervals_of([STARTED, *changes] if changes else [], died_at_s) == wanted


def test_a_record_that_does_not_begin_with_a_start_is_refused() -> None:
    with pytest.raises(MalformedContent, match=r"change 1 is LeaseGranted.*expected a start"):
        intervals_of([LEASE], None)


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
