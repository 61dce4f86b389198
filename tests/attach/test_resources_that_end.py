"""What ``attach --balance`` does when a resource of its machine ends, and once it is there again.

Each is one state that it names; nothing ends, and it goes on by itself.
"""

import asyncio
import errno
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import psutil
import pytest
from aiohttp import web
from attach_process import free_port
from fake_pulsar import FakePulsar

from loadmanager.core.ids import BundleId
from loadmanager.core.move_limits import MoveBudget, MoveLimits
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.controller import AttachActions
from loadmanager.pulsar.observation import Strategy
from loadmanager.pulsar.state import (
    SHEDDING,
    Part,
    StateUnusable,
    StoredBudget,
    locked_state,
    state_file,
)

FEW_FILES: Final = 64
LIMIT_S: Final = 300.0
"""Not how long anything takes: the process may be the last of many to get a processor."""
pytestmark = pytest.mark.timeout(600)

_LIMITED: Final = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv.pop(1)),) * 2)
from loadmanager.cli import main
main(prog_name="loadmanager")
"""


class Attached:
    def __init__(self, process: "subprocess.Popen[bytes]", folder: Path) -> None:
        self.process, self.log, self.errors = process, folder / "log", folder / "errors"

    def rounds(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines()
        return [json.loads(one) for one in lines if '"held": ' in one and one.endswith("}")]

    def until(self, holds: Callable[[], object]) -> None:
        deadline_s = time.monotonic() + LIMIT_S
        while not holds():
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline_s, self.errors.read_text()[-3000:]
            time.sleep(0.05)

    def another_round(self, held: str = "") -> None:
        many = len(self.rounds())
        self.until(lambda: any(held in one["held"] for one in self.rounds()[many + 1 :]))

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(LIMIT_S) == 0, self.errors.read_text()


@contextmanager
def attached(
    pulsar: FakePulsar, folder: Path, *options: str, log: str = "log", files: int = 1024
) -> Iterator[Attached]:
    command = [sys.executable, "-c", _LIMITED, str(files), "attach", "--balance", "--json"]
    command += ["--pulsar", pulsar.url, "--interval", "0.3", "--settle", "0"]
    command += ["--state-dir", str(folder / "state"), *options]
    with (folder / log).open("w") as out, (folder / "errors").open("w") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors)
    try:
        yield Attached(process, folder)
    finally:
        process.kill()
        process.wait()


def test_taking_all_descriptors_ends_nothing(pulsar: FakePulsar, tmp_path: Path) -> None:
    port = free_port()
    with attached(pulsar, tmp_path, "--metrics-port", str(port), files=FEW_FILES) as running:
        running.until(lambda: pulsar.dynamic.get(SHEDDING) == "false")
        with ExitStack() as stack:
            for _ in range(2 * FEW_FILES):
                client = stack.enter_context(socket.socket())
                client.settimeout(0.2)
                with suppress(OSError):
                    client.connect(("127.0.0.1", port))
            # Those that are refused are closed at once, and the others leave enough for rounds.
            running.another_round()
        running.another_round()
        running.end()
    assert SHEDDING not in pulsar.dynamic


def test_a_log_on_a_full_disk_ends_nothing(pulsar: FakePulsar, tmp_path: Path) -> None:
    (tmp_path / "full").symlink_to("/dev/full")
    with attached(pulsar, tmp_path, log="full") as running:
        running.until(lambda: len(pulsar.unloads) > 3)
        running.process.terminate()
        running.process.wait(LIMIT_S)
    assert SHEDDING not in pulsar.dynamic


@pytest.mark.parametrize(
    ("error", "once", "ends"),
    [
        (OSError(errno.ENOSPC, "full"), False, False),
        (OSError(errno.ENOSPC, "full"), True, True),
        (BrokenPipeError(), False, True),
    ],
)
def test_an_observer_goes_on_while_the_disk_of_its_log_is_full(
    error: OSError, once: bool, ends: bool
) -> None:
    def window(*_: object, **__: object) -> None:
        raise error

    printed: Any = SimpleNamespace(window=window)
    options = {"urls": ("http://a",), "once": once}
    actions = AttachActions(PulsarAdmin(Access()), options, printed, Strategy)
    seen: Any = None
    with pytest.raises(type(error)) if ends else nullcontext():
        actions._show(seen)


def _unwritable(state: Path) -> Callable[[], None]:
    """Let nothing be written or read below the folder of the state; return what ends that."""
    aside = state.with_name("aside")
    state.rename(aside)
    state.write_text("a file where a folder was")

    def end() -> None:
        state.unlink()
        aside.rename(state)

    return end


def _looped(state: Path) -> Callable[[], None]:
    """Make links of files of the state that lead to one another."""
    paused = state / "attach-research.paused"
    paused.symlink_to(paused.name)
    return paused.unlink


def _piped(state: Path) -> Callable[[], None]:
    """Make a pipe of a file of the state, which nobody writes to."""
    paused = state / "attach-research.paused"
    os.mkfifo(paused)
    return paused.unlink


@pytest.mark.parametrize("fault", [_unwritable, _looped, _piped])
def test_a_state_that_cannot_be_used_holds_rounds_and_is_named_until_it_can_be(
    pulsar: FakePulsar, tmp_path: Path, fault: Callable[[Path], Callable[[], None]]
) -> None:
    with attached(pulsar, tmp_path) as running:
        running.until(lambda: pulsar.dynamic.get(SHEDDING) == "false")
        running.another_round()
        end = fault(tmp_path / "state")
        running.another_round("attach-research.paused")
        end()
        running.until(lambda: not running.rounds()[-1]["held"])
        running.end()
    assert SHEDDING not in pulsar.dynamic


async def test_links_in_the_folder_of_the_state_lead_nothing_astray(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    state = state_file(tmp_path / "state", "research")
    assert state_file(tmp_path, "eu/1").path.name == "attach-eu%2F1.json"
    for name in ("attach-research.paused.new", "attach-research.moves"):
        (tmp_path / "state" / name).symlink_to(victim)
    await state.pause("maintenance")
    assert await state.paused() == "maintenance"
    await state.keep(Part.MOVES, "new")
    assert (await state.text(Part.MOVES), victim.read_text()) == ("new", "kept")
    lock = tmp_path / "state" / "attach-research.lock"
    lock.symlink_to(victim)
    with pytest.raises(StateUnusable, match=r"attach-research.lock: .*symbolic links"):
        locked_state(tmp_path / "state", "research").__enter__()
    lock.unlink()
    with locked_state(tmp_path / "state", "research"):
        assert lock.is_file()


@pytest.mark.parametrize("jump_ms", [-3_600_000, 3_600_000])
async def test_a_clock_that_jumps_an_hour_neither_frees_nor_blocks_the_budget_for_long(
    tmp_path: Path, jump_ms: int
) -> None:
    """Moves of the last hour count once more, or not, by the clock; none counts for longer."""
    now_ms, now_s = 10_000_000, 50.0
    bundle = BundleId("acme/orders/0x00000000_0xffffffff")

    def stored() -> StoredBudget:
        budget = MoveBudget(MoveLimits(per_minute=100, per_hour=10, per_namespace=10, at_once=1))
        return StoredBudget(budget, state, lambda: now_ms, lambda: now_s)

    state = state_file(tmp_path, "research")
    await stored().store([bundle] * 10)
    now_ms += jump_ms
    after = stored()
    await after.resume()
    assert bool(after.budget.used_up(now_s, urgent=False)) is (jump_ms < 0)
    now_s += 3_601.0
    assert after.budget.used_up(now_s, urgent=False) == ""


@pytest.mark.thorough
@pytest.mark.timeout(2_400)
def test_ten_minutes_of_churn_leave_memory_flat(pulsar: FakePulsar, tmp_path: Path) -> None:
    """Brokers restart, pause and answer late, clients come and go, and moves are made."""
    port = free_port()
    with attached(pulsar, tmp_path, "--metrics-port", str(port)) as running:
        running.until(lambda: pulsar.dynamic.get(SHEDDING) == "false")
        memory = psutil.Process(running.process.pid)
        first, sizes, until_s = pulsar.brokers[0], list[int](), time.monotonic() + 600.0
        while time.monotonic() < until_s:
            odd = len(sizes) % 3
            first.instead["/metrics/"] = [_late, _empty, _cut][odd]
            with ExitStack() as stack:
                for _ in range(50):
                    client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 5.0))
                    client.send(b"GET /metrics HTTP/1.1\r\n" + b"a" * 200)
            time.sleep(2.0)
            first.instead.clear()
            running.another_round()
            sizes.append(memory.memory_info().rss)
        running.end()
    a_tenth = max(len(sizes) // 10, 1)
    early, late = max(sizes[a_tenth : 3 * a_tenth]), max(sizes[-2 * a_tenth :])
    assert late < early + 24 * 2**20, [size >> 20 for size in sizes]


async def _late(_: web.Request) -> web.Response:
    await asyncio.sleep(3.0)
    return web.Response(text="")


async def _empty(_: web.Request) -> web.Response:
    return web.Response(text="")


async def _cut(_: web.Request) -> web.Response:
    return web.Response(text='pulsar_in_messages_total{namespace="bench/skew",topic="x')
