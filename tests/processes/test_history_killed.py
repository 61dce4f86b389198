import gzip
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from history_sinks import finished, seqs_in, unfinished

from loadmanager.adapters.history.sink import finish_left
from loadmanager.adapters.history.storage import check_history

pytestmark = pytest.mark.processes
WRITER = """
import sys, time
from prometheus_client import CollectorRegistry
from loadmanager.adapters.history.sink import ThreadedHistory
from loadmanager.config.sections import HistorySettings
from loadmanager.core.history.schema import TERM_CHANGE
from loadmanager.core.history.records import Origin, record_of
from loadmanager.core.history.schema import Stream
from loadmanager.telemetry.metrics import HistoryMetrics

history = ThreadedHistory(
    HistorySettings(dir=sys.argv[1], flush_interval_s=0.1),
    Origin("prod", "b1:8080", "0123456789abcdef"),
    HistoryMetrics(CollectorRegistry()),
)
history.start()

def tell(count):
    now_ms = time.time_ns() // 1_000_000
    for _ in range(count):
        record = record_of(TERM_CHANGE, now_ms, epoch=1, event="began")
        history.offer(Stream.ROUNDS, now_ms, lambda: [record])
"""
ENDLESS = """
told = 0
while True:
    tell(1)
    told += 1
    print(told, flush=True)
    time.sleep(0.001)
"""


@pytest.fixture(name="endless")
def endless_fixture(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER + ENDLESS, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def members_of(data: bytes) -> int:
    count = 0
    while data:
        member = zlib.decompressobj(31)
        try:
            member.decompress(data)
        except zlib.error:
            return count
        if not member.eof:
            return count
        data, count = member.unused_data, count + 1
    return count


def test_a_killed_writer_loses_no_flushed_line(
    endless: subprocess.Popen[str], tmp_path: Path
) -> None:
    assert endless.stdout is not None
    for line in endless.stdout:
        paths = unfinished(tmp_path)
        if int(line) > 100 and paths and members_of(paths[0].read_bytes()) >= 3:
            break
    (path,) = unfinished(tmp_path)
    flushed = seqs_in(path) if _is_whole(path) else []
    endless.kill()
    endless.wait(30)
    assert finish_left(tmp_path) == 1
    (whole,) = finished(tmp_path)
    kept = seqs_in(whole)
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) >= max(len(flushed), 3)
    found = check_history(tmp_path)
    assert (found.faults, found.missing, found.unfinished) == ([], 0, 0)


def _is_whole(path: Path) -> bool:
    try:
        gzip.decompress(path.read_bytes())
    except EOFError:
        return False
    return True
