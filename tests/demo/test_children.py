import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from loadmanager.demo.cluster import ChildFailed, Children, DemoFailed, free_ports, no_listener

SLEEPER = "import signal; print('ready', flush=True); signal.pause()"
STUBBORN = (
    "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True)\n"
    "while True: signal.pause()"
)


@pytest.fixture
async def children(tmp_path: Path) -> AsyncIterator[Children]:
    started = Children(tmp_path)
    yield started
    await started.stop()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    # A zombie waits for its new parent, but runs no more.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


async def until_gone(pid: int) -> None:
    async with asyncio.timeout(60):
        while not gone(pid):  # noqa: ASYNC110 - a process that is not ours gives no event
            await asyncio.sleep(0.02)


async def ready(
    children: Children, name: str, program: str, ends_by: signal.Signals = signal.SIGKILL
) -> None:
    child = await children.start(name, "-c", program, ends_by=ends_by)

    async def silent() -> str:
        return "" if "ready" in child.log_tail() else "silent"

    await children.wait_until(silent, child=child, what="ready", bound_s=60)


@pytest.mark.parametrize(
    ("program", "ends_by", "ended_by"),
    [
        (SLEEPER, signal.SIGKILL, signal.SIGKILL),
        (SLEEPER, signal.SIGTERM, signal.SIGTERM),
        (STUBBORN, signal.SIGTERM, signal.SIGKILL),
    ],
    ids=["at once", "asked first", "ignores it"],
)
async def test_stopping_ends_every_child(
    children: Children,
    program: str,
    ends_by: signal.Signals,
    ended_by: signal.Signals,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if program is STUBBORN:
        monkeypatch.setattr("loadmanager.demo.cluster.KILL_AFTER_S", 0.2)
    for name in ("one", "two"):
        await ready(children, name, program, ends_by)
    await children.stop()
    assert [child.process.returncode for child in children.started] == [-ended_by] * 2


async def test_what_a_child_started_ends_with_it(children: Children) -> None:
    program = (
        "import signal, subprocess, sys\n"
        f"inner = subprocess.Popen([sys.executable, '-c', {STUBBORN!r}])\n"
        "print('inner', inner.pid, flush=True); signal.pause()"
    )
    await ready(children, "outer", program)
    pid = int(children.started[0].log_path.read_text().split("inner ")[1].split()[0])
    await children.stop()
    await until_gone(pid)


async def test_a_child_that_dies_is_reported_unless_the_demo_ended_it(children: Children) -> None:
    for name in ("broker-2", "broker-3"):
        await ready(children, name, SLEEPER)
    ended, killed = children.started
    ended.send(signal.SIGKILL)
    await ended.process.wait()
    children.require_running()
    killed.process.kill()
    await killed.process.wait()
    with pytest.raises(ChildFailed, match="broker-3 ended with signal SIGKILL"):
        children.require_running()
    killed.ending = True
    child = await children.start("broker-1", "-c", "raise SystemExit('no such port')")
    await child.process.wait()
    with pytest.raises(ChildFailed) as failed:
        children.require_running()
    assert str(failed.value) == (
        f"broker-1 ended with exit code 1\n  log: {child.log_path}\n  | no such port"
    )


async def never() -> str:
    return "no answer"


async def test_waiting_ends_when_a_child_dies_and_after_its_time(
    children: Children,
) -> None:
    child = await children.start("broker-1", "-c", "raise SystemExit(3)")
    with pytest.raises(ChildFailed, match="exit code 3"):
        await children.wait_until(never, child=child, what="ready", bound_s=50)
    child.ending = True
    await ready(children, "broker-2", SLEEPER)
    child = children.started[1]
    with pytest.raises(ChildFailed, match=r"broker-2 was not healthy within 0\.1 s: no answer"):
        await children.wait_until(never, child=child, what="healthy", bound_s=0.1)


async def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    program = (
        "import asyncio, pathlib, sys\n"
        "from loadmanager.demo.cluster import Children\n"
        "async def main():\n"
        f"    child = await Children(pathlib.Path(sys.argv[1])).start('c', '-c', {SLEEPER!r})\n"
        "    print(child.process.pid, flush=True)\n"
        "    await child.process.wait()\n"
        "asyncio.run(main())\n"
    )
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, str(tmp_path)), stdout=asyncio.subprocess.PIPE
    )
    assert parent.stdout is not None
    pid = int(await parent.stdout.readline())
    parent.kill()
    await parent.wait()
    await until_gone(pid)


async def test_free_ports_are_different_and_free() -> None:
    ports = free_ports(9)
    assert len(set(ports)) == 9
    assert all([await no_listener(port) for port in ports])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(DemoFailed, match=f"--port-base {port}: port {port} is in use"):
            free_ports(1, port)
        assert await no_listener(port) == ""
