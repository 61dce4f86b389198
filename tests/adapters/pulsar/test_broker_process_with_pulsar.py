"""The broker as a process with both servers."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from pulsar_wire import BUNDLE, Wire

from loadmanager.adapters.broker.http_control import HttpBrokerControl

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@asynccontextmanager
async def serving_process(
    ledger: Path, token: int
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Wire]]:
    """Yield a broker process that serves a bundle under ``token``, and a client of it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadmanager", "broker", "--listen", "127.0.0.1:0"),
        *("--pulsar-listen", "127.0.0.1:0", "--ledger", str(ledger)),
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60):
            lines = [(await process.stdout.readline()).decode() for _ in range(2)]
        http, pulsar = (line.split()[-1] for line in lines)
        control = HttpBrokerControl(http, timeout_s=60.0)
        state = await control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        until_s, who = state.clock_s + 600, state.incarnation
        await control.renew_lease(agent_epoch=1, until_s=until_s, incarnation=who)
        await control.load(BUNDLE, agent_epoch=1, fencing_token=token)
        await control.close()
        wire = await Wire.to(int(pulsar.rpartition(":")[2]))
        await wire.shake_hands()
        yield process, wire
        wire.writer.close()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_what_a_killed_process_acknowledged_is_in_the_ledger(tmp_path: Path) -> None:
    async with serving_process(tmp_path, 5) as (process, wire):
        await wire.subscribe(permits=0)
        await wire.create()
        for number in range(50):
            await wire.publish(b"%d" % number, number=number)
        process.kill()
        await wire.closed()
    async with serving_process(tmp_path, 6) as (_, wire):
        await wire.subscribe()
        got = [(await wire.message())[1] for _ in range(50)]
    assert got == [b"%d" % number for number in range(50)]


async def test_a_stopping_process_writes_down_what_was_consumed(tmp_path: Path) -> None:
    async with serving_process(tmp_path, 5) as (process, wire):
        await wire.subscribe()
        await wire.create()
        for number in range(3):
            await wire.publish(b"%d" % number, number=number)
        for message in [await wire.message() for _ in range(2)]:
            wire.ack(message[2])
        await wire.settled()
        process.send_signal(signal.SIGTERM)
        assert await process.wait() == 0
    async with serving_process(tmp_path, 6) as (_, wire):
        await wire.subscribe()
        assert (await wire.message())[1] == b"2"
