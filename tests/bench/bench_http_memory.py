"""What a sidecar process costs in memory while clients hold connections and finish nothing.

A real sidecar of a cluster of processes is held under 250 connections: idle ones first, then as
many whose heads never end: one that stays just below the limit, and the 120 headers of 16,000
bytes that once took a gigabyte. The highest resident memory of the process is what counts.
"""

import asyncio
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil
import pytest
from cluster_processes import ProcessCluster, process_cluster
from figures import emit

CONNECTIONS: Final = 250
HELD_S: Final = 6.0
MOST_MORE_MB: Final = 30.0
ONE_HEADER: Final = b"A: " + b"a" * 16_000 + b"\r\n"
FIRST: Final = b"GET / HTTP/1.1\r\nHost: x\r\n"
HEADS: Final = {
    "idle": b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n",
    "unfinished_just_below_the_limit": FIRST + ONE_HEADER * 4 + b"A: " + b"a" * 1_400,
    "unfinished_far_beyond_the_limit": FIRST + ONE_HEADER * 120,
    "unfinished_small_headers": FIRST + b"A: b\r\n" * 10_900,
}


async def highest_memory_mb(process: psutil.Process, port: int, sent: bytes) -> float:
    writers: list[asyncio.StreamWriter] = []
    highest = 0

    async def hold() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writers.append(writer)
        for start in range(0, len(sent), 16_384):
            with suppress(ConnectionError):
                writer.write(sent[start : start + 16_384])
                await writer.drain()

    holding = [asyncio.create_task(hold()) for _ in range(CONNECTIONS)]
    until_s = time.monotonic() + HELD_S
    while time.monotonic() < until_s:
        highest = max(highest, process.memory_info().rss)
        await asyncio.sleep(0.02)
    for task in holding:
        task.cancel()
    await asyncio.gather(*holding, return_exceptions=True)
    for writer in writers:
        writer.close()
    return highest / 1e6


def sidecar_of(processes: ProcessCluster) -> tuple[psutil.Process, int]:
    (member,) = processes.cluster.members
    (child,) = (one for one in processes.children.started if one.name.startswith("sidecar"))
    found = re.search(r":(\d+)$", member.sidecar_url)
    assert found is not None
    return psutil.Process(child.process.pid), int(found[1])


@pytest.mark.bench
@pytest.mark.timeout(180)
async def test_heads_that_never_end_cost_little_more_than_connections_at_rest(
    tmp_path: Path,
) -> None:
    highest: dict[str, float] = {}
    async with process_cluster(tmp_path, brokers=1, bundles=16) as processes:
        await processes.start()
        process, port = sidecar_of(processes)
        before = process.memory_info().rss / 1e6
        emit("http_memory", held="nothing", resident_mb=round(before, 1))
        for name, sent in HEADS.items():
            highest[name] = await highest_memory_mb(process, port, sent)
            emit(
                "http_memory",
                held=name,
                connections=CONNECTIONS,
                bytes_each=len(sent),
                highest_resident_mb=round(highest[name], 1),
                more_than_idle_mb=round(highest[name] - highest["idle"], 1),
            )
            await asyncio.sleep(1.0)
    assert max(highest.values()) - highest["idle"] <= MOST_MORE_MB
