"""The ``loadmanager broker`` command as a process of its own."""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import pytest

from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.core.ids import parse_bundle
from loadmanager.reference_broker.changes import EndReason, read_record
from tests.adapters.http.test_listening import has_ipv6

pytestmark = pytest.mark.processes
BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")


@dataclass(slots=True)
class Child:
    process: asyncio.subprocess.Process
    url: str
    control: HttpBrokerControl

    async def give_bundle(self, lease_s: float = 60.0) -> None:
        state = await self.control.renew_lease(agent_epoch=1, until_s=None, incarnation=None)
        await self.control.renew_lease(
            agent_epoch=1, until_s=state.clock_s + lease_s, incarnation=state.incarnation
        )
        await self.control.load(BUNDLE, agent_epoch=1, fencing_token=7)

    async def publish(self) -> int:
        url = f"{self.url}/publish/persistent/t/n/orders"
        async with aiohttp.ClientSession() as http, http.post(url, data=b"hello") as answer:
            return answer.status


@asynccontextmanager
async def broker_process(*options: str) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadmanager", "broker", "--listen", "127.0.0.1:0"),
        *options,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    async with asyncio.timeout(60):
        announced = (await process.stdout.readline()).decode()
    assert announced.startswith("broker listening on http://127.0.0.1:")
    url = announced.rpartition(" ")[2].strip()
    control = HttpBrokerControl(url, timeout_s=60.0)
    try:
        yield Child(process, url, control)
    finally:
        await control.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_after_a_kill_the_record_tells_what_was_served(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    began_s = time.monotonic()
    async with broker_process("--record", str(record)) as child:
        await child.give_bundle()
        assert await child.publish() == 200
        child.process.kill()
        await child.process.wait()
        died_at_s = time.monotonic()
    (served,) = read_record(record, died_at_s)
    assert (served.bundle, served.fencing_token) == (BUNDLE, 7)
    assert served.broker == child.url.removeprefix("http://")
    assert began_s < served.start_s < served.end_s == died_at_s
    assert served.why is EndReason.NOT_RECORDED


async def test_sigterm_ends_serving_and_the_process(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    async with broker_process("--record", str(record)) as child:
        await child.give_bundle()
        child.process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await child.process.wait() == 0
    (served,) = read_record(record, died_at_s=None)
    assert served.why is EndReason.STOPPED
    assert record.read_text().splitlines()[-1].endswith('"event":"stop"}')


async def test_a_frozen_broker_serves_nothing_when_it_wakes_after_its_lease(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    async with broker_process("--record", str(record)) as child:
        await child.give_bundle(lease_s=4.0)
        child.process.send_signal(signal.SIGSTOP)
        posting = asyncio.create_task(child.publish())
        (served,) = read_record(record, died_at_s=None)
        until_s = served.end_s
        # Not a wait for someone to be ready: that time passes is what the test is about.
        await asyncio.sleep(until_s - time.monotonic() + 0.05)
        child.process.send_signal(signal.SIGCONT)
        assert await posting == 503
    (served,) = read_record(record, died_at_s=None)
    assert (served.end_s, served.why) == (until_s, EndReason.LEASE_LOST)


# Other work on the machine makes CPU time dearer: of several counts the least is held to a bound.
async def test_each_message_costs_its_cpu_time_and_idling_next_to_none() -> None:
    async with broker_process("--cpu-ms-per-message", "50") as child:
        pid = (await child.control.stats()).process_id
        assert pid == child.process.pid
        await child.give_bundle()
        costs_s = [await cpu_s_of(pid, child.publish) for _ in range(8)]
        idle_s = [await cpu_s_of(pid, idle) for _ in range(3)]
    # The kernel counts in steps of 10 ms, so one count says little.
    assert sum(costs_s) > 8 * 0.05 - 0.025
    assert min(costs_s) < 0.15
    # As much time as five messages, were it to spin.
    assert min(idle_s) < median(costs_s)


async def cpu_s_of(process_id: int, work: Callable[[], Awaitable[object]]) -> float:
    before_s = cpu_s(process_id)
    await work()
    return cpu_s(process_id) - before_s


async def idle() -> None:
    # What is measured is this quarter of a second of idling.
    await asyncio.sleep(0.25)


def cpu_s(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def test_what_keeps_it_from_starting_is_told_in_one_line() -> None:
    async with broker_process() as child:
        taken = child.url.removeprefix("http://")
        for listen, more, said in (
            (taken, (), "already in use"),
            ("127.0.0.1:0", ("--record", "/nowhere/record.jsonl"), "/nowhere/record.jsonl"),
        ):
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "loadmanager", "broker", "--listen", listen, *more),
                stderr=asyncio.subprocess.PIPE,
            )
            _, errors = await process.communicate()
            assert process.returncode == 1
            assert errors.decode().startswith(f"Error: broker on {listen}: ")
            assert said in errors.decode()


async def test_it_listens_on_ipv6_where_there_is_any() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadmanager", "broker", "--listen", "[::1]:0"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    announced = (await process.stdout.readline()).decode()
    if has_ipv6():
        assert announced.startswith("broker listening on http://[::1]:")
        control = HttpBrokerControl(announced.rpartition(" ")[2].strip(), timeout_s=60.0)
        assert (await control.stats()).bundles == {}
        await control.close()
        process.terminate()
    _, errors = await process.communicate()
    if has_ipv6():
        assert process.returncode == 0
    else:
        assert (process.returncode, announced) == (1, "")
        assert errors.decode().startswith("Error: broker on ::1:0: ")
