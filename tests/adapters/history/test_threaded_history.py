import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from history_sinks import FailingDisk, finished, lines_in, seqs_in, unfinished
from prometheus_client import CollectorRegistry
from waiting import eventually

from loadmanager.adapters.history.sink import ThreadedHistory, recorded
from loadmanager.adapters.history.storage import HistoryUnavailable, check_history
from loadmanager.config.sections import HistorySettings
from loadmanager.core.history.records import Origin, Record, record_of
from loadmanager.core.history.schema import TERM_CHANGE, Stream
from loadmanager.core.ids import BrokerId
from loadmanager.telemetry.metrics import HistoryMetrics

ORIGIN = Origin("prod", BrokerId("b1:8080"), "0123456789abcdef")
NOON_MS = 1_795_262_400_000
DAY_MS = 86_400_000
Open = Callable[..., ThreadedHistory]


@pytest.fixture(name="registry")
def registry_fixture() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture(name="opened")
def opened_fixture(tmp_path: Path, registry: CollectorRegistry) -> Iterator[Open]:
    made: list[ThreadedHistory] = []  # They have begun.

    def opened(
        disk: FailingDisk | None = None,
        origin: Origin = ORIGIN,
        wall_ms: int = NOON_MS,
        **settings: Any,
    ) -> ThreadedHistory:
        known: dict[str, Any] = {"dir": str(tmp_path), "flush_interval_s": 0.1}
        history = ThreadedHistory(
            HistorySettings(**{**known, **settings}),
            origin,
            HistoryMetrics(registry),
            disk=disk or FailingDisk(),
            wall_ms=lambda: wall_ms,
        )
        made.append(history)
        history.start()
        return history

    yield opened
    for history in made:
        history.close(10.0)


def told(at_ms: int = NOON_MS) -> list[Record]:
    return [record_of(TERM_CHANGE, at_ms, epoch=1, event="began")]


def offer(history: ThreadedHistory, times: int = 1) -> None:
    for _ in range(times):
        history.offer(Stream.ROUNDS, NOON_MS, told)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"loadmanager_history_{name}", labels)


def test_what_was_offered_is_in_whole_files_when_the_sidecar_has_stopped(
    opened: Open, registry: CollectorRegistry, tmp_path: Path
) -> None:
    history = opened(flush_interval_s=3600.0)
    offer(history, 50)
    history.offer(Stream.REPORTS, NOON_MS, list)
    history.close(10.0)
    assert seqs_in(*finished(tmp_path)) == list(range(1, 51))
    assert value(registry, "lines_total", stream="rounds") == 50
    assert value(registry, "files_total", stream="rounds") == 1
    assert value(registry, "bytes_total", stream="reports") == 0


def test_only_the_wanted_stream_is_written(opened: Open, tmp_path: Path) -> None:
    history = opened(write="reports")
    assert (history.wants(Stream.REPORTS), history.wants(Stream.ROUNDS)) == (True, False)
    offer(history)
    history.close(10.0)
    assert finished(tmp_path) == []


async def test_lines_are_on_disk_soon_without_more_lines(opened: Open, tmp_path: Path) -> None:
    history = opened()
    offer(history)
    await eventually(lambda: seqs_in(*unfinished(tmp_path)) == [1])


def test_who_offers_never_waits_and_what_finds_no_room_is_counted_and_told(
    opened: Open, registry: CollectorRegistry, tmp_path: Path
) -> None:
    history = opened(queue_records=10, flush_interval_s=3600.0)
    busy, go_on = threading.Event(), threading.Event()

    def slow() -> list[Record]:
        busy.set()
        go_on.wait(30.0)
        return told()

    history.offer(Stream.ROUNDS, NOON_MS, slow)
    assert busy.wait(30.0)
    offer(history, 14)
    assert value(registry, "dropped_total", why="queue_full") == 4
    go_on.set()
    history.close(10.0)
    lines = list(lines_in(*finished(tmp_path)))
    assert [line["seq"] for line in lines] == list(range(1, 13))
    assert lines[-1]["kind"] == "lost_rounds"
    assert (lines[-1]["records"], lines[-1]["why"]) == (4, "queue_full")
    assert check_history(tmp_path).given_up == 4


async def test_a_full_disk_is_reported_retried_and_recovered_from(
    opened: Open, registry: CollectorRegistry, tmp_path: Path
) -> None:
    disk = FailingDisk(free_bytes=0)
    history = opened(disk)
    offer(history)
    await eventually(lambda: "No space left" in history.trouble)
    await eventually(lambda: (value(registry, "errors_total") or 0) >= 2)
    offer(history)
    disk.free_bytes = 1 << 20
    await eventually(lambda: not history.trouble)
    history.close(10.0)
    assert seqs_in(*finished(tmp_path)) == [1, 2]


def test_a_number_that_is_none_costs_its_record_alone(opened: Open, tmp_path: Path) -> None:
    history = opened(flush_interval_s=3600.0)
    bad = Record("term", NOON_MS, {"epoch": float("nan"), "event": "began"})
    history.offer(Stream.ROUNDS, NOON_MS, lambda: [bad])
    offer(history)
    history.close(10.0)
    kinds = [(line["kind"], line.get("why")) for line in lines_in(*finished(tmp_path))]
    assert kinds == [("term", None), ("lost_rounds", "unfit")]


def test_a_disk_that_never_comes_back_does_not_keep_the_sidecar_from_stopping(
    opened: Open, registry: CollectorRegistry
) -> None:
    history = opened(FailingDisk(failing={"create"}))
    offer(history, 3)
    history.close(10.0)
    assert value(registry, "dropped_total", why="unwritable") == 3


def leave_files(top: Path, days_ago: dict[str, int], **settings: Any) -> None:
    """Have one instance after the other write a line so long ago, and close."""
    for instance, days in days_ago.items():
        at_ms = NOON_MS - days * DAY_MS
        history = ThreadedHistory(
            HistorySettings(dir=str(top), **settings),
            Origin("prod", ORIGIN.writer, instance),
            HistoryMetrics(CollectorRegistry()),
            wall_ms=lambda at_ms=at_ms: at_ms,  # type: ignore[misc] # bound in the loop
        )
        history.start()
        history.offer(Stream.ROUNDS, at_ms, lambda at_ms=at_ms: told(at_ms))  # type: ignore[misc] # the same
        history.close(10.0)


def instances(top: Path) -> list[str]:
    return sorted(path.name.split("-")[2] for path in finished(top))


@pytest.mark.parametrize(
    ("days_ago", "settings", "kept", "days"),
    [
        ({"aa": 3, "bb": 1, "cc": 0}, {"max_age_days": 2.0}, ["bb", "cc"], ["20", "21"]),
        (
            {"aa": 3, "bb": 2, "cc": 1, "dd": 0},
            {"max_size_gib": 300 / (1 << 30)},
            ["bb", "cc", "dd"],
            ["19", "20", "21"],
        ),
        ({"aa": 30, "bb": 0}, {"max_size_gib": 0, "max_age_days": 0}, ["aa", "bb"], ["22", "21"]),
    ],
    ids=["too old", "too large", "without bounds"],
)
def test_the_oldest_own_files_beyond_the_bounds_are_deleted_with_their_empty_folders(
    tmp_path: Path,
    days_ago: dict[str, int],
    settings: dict[str, float],
    kept: list[str],
    days: list[str],
) -> None:
    leave_files(tmp_path, days_ago, **settings)
    assert instances(tmp_path) == kept
    assert [one.name[-2:] for one in sorted(tmp_path.iterdir())] == days


def test_the_files_of_others_are_never_deleted(opened: Open, tmp_path: Path) -> None:
    leave_files(tmp_path, {"aa": 3000}, max_age_days=0.0)
    history = opened(origin=Origin("prod", BrokerId("b2:8080"), "bb"), max_age_days=1.0)
    offer(history)
    history.close(10.0)
    assert instances(tmp_path) == ["aa", "bb"]


def test_a_simulation_waits_for_the_disk_and_loses_nothing(tmp_path: Path) -> None:
    with recorded(tmp_path, ORIGIN) as history:
        offer(history, 5000)
    assert seqs_in(*finished(tmp_path)) == list(range(1, 5001))
    first = [path.read_bytes() for path in finished(tmp_path)]
    with recorded(tmp_path / "again", ORIGIN) as history:
        offer(history, 5000)
    assert [path.read_bytes() for path in finished(tmp_path / "again")] == first


def test_a_simulation_that_was_killed_can_be_repeated(tmp_path: Path) -> None:
    with recorded(tmp_path, ORIGIN) as history:
        offer(history, 3)
    (whole,) = finished(tmp_path)
    wanted = whole.read_bytes()
    whole.with_name(f"_{whole.name}").write_bytes(wanted[:-20])
    whole.unlink()
    with recorded(tmp_path, ORIGIN) as history:
        offer(history, 3)
    assert [path.read_bytes() for path in finished(tmp_path)] == [wanted]
    assert unfinished(tmp_path) == []


def test_a_simulation_is_told_that_nothing_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("no folder")
    with pytest.raises(HistoryUnavailable, match="not complete"):  # noqa: SIM117 - two promises
        with recorded(tmp_path / "taken", ORIGIN) as history:
            offer(history)


def remote(spool: Path, name: str) -> dict[str, Any]:
    return {"dir": f"memory://{name}", "spool_dir": str(spool)}


def remote_names(name: str) -> list[str]:
    fsspec = pytest.importorskip("fsspec")
    files = fsspec.filesystem("memory").find(f"/{name}")
    return [path.removeprefix(f"/{name}/") for path in files]


def test_whole_files_are_stored(opened: Open, tmp_path: Path, registry: CollectorRegistry) -> None:
    history = opened(**remote(tmp_path, "uploaded"))
    offer(history)
    history.close(10.0)
    name = "rounds-b1_8080-0123456789abcdef-000000000001.jsonl.gz"
    assert remote_names("uploaded") == [f"date=2026-11-21/hour=12/{name}"]
    assert finished(tmp_path) == []
    assert value(registry, "uploads_total") == 1


def test_what_could_not_be_uploaded_is_uploaded_after_a_restart(tmp_path: Path) -> None:
    leave_files(tmp_path, {"aa": 0})
    history = ThreadedHistory(
        HistorySettings(**remote(tmp_path, "later")),
        Origin("prod", ORIGIN.writer, "bb"),
        HistoryMetrics(CollectorRegistry()),
        wall_ms=lambda: NOON_MS,
    )
    history.start()
    history.close(10.0)
    assert [name.split("-")[-2] for name in remote_names("later")] == ["aa"]


def test_an_address_that_nothing_here_can_reach_is_refused_at_once(opened: Open) -> None:
    with pytest.raises(HistoryUnavailable, match=r"dir = nowhere://x: .*nowhere.*pip install"):
        opened(dir="nowhere://x", spool_dir="/tmp/spool")  # noqa: S108 - never touched
