"""The child processes of the demo: started, watched, and ended together with the demo."""

import asyncio
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Final

from loadmanager.core.errors import LoadManagerError

TAIL_LINES: Final = 15
KILL_AFTER_S: Final = 5.0
POLL_S: Final = 0.1
LONGEST_LINE_BYTES: Final = 4 * 1024 * 1024
PORTS_BELOW_EPHEMERAL: Final = range(20_000, 32_000)
PR_SET_PDEATHSIG: Final = 1


class DemoFailed(LoadManagerError):
    """The demo cannot continue; the message says why and names the log."""


class ChildFailed(DemoFailed):
    """A child process ended by itself, or did not become ready."""

    def __init__(self, child: "Child", what: str) -> None:
        super().__init__(f"{child.name} {what}\n  log: {child.log_path}\n{child.log_tail()}")
        self.name = child.name


@dataclass(slots=True)
class Child:
    """A process in a group of its own. The demo ends it by ``ends_by``; ``ending`` is set then."""

    name: str
    process: asyncio.subprocess.Process
    log_path: Path
    ends_by: signal.Signals
    ending: bool = False

    @property
    def running(self) -> bool:
        return self.process.returncode is None

    def send(self, number: signal.Signals) -> None:
        self.ending = True
        if self.running:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, number)

    def require_running(self) -> None:
        if not self.running and not self.ending:
            raise ChildFailed(self, f"ended with {_ending(self.process.returncode)}")

    def log_tail(self) -> str:
        text = self.log_path.read_text(errors="replace") if self.log_path.exists() else ""
        lines = text.splitlines()[-TAIL_LINES:] or ["(the log is empty)"]
        return "\n".join(f"  | {line}" for line in lines)


@dataclass(slots=True)
class Children:
    """All child processes of one demo, in the order of their start."""

    log_dir: Path
    started: list[Child] = field(default_factory=list)

    async def start(
        self,
        name: str,
        *arguments: str,
        stdout: int | None = None,
        ends_by: signal.Signals = signal.SIGKILL,
        environment: Mapping[str, str] | None = None,
    ) -> Child:
        """Start ``python`` with ``arguments``; its output goes to ``NAME.log``.

        It gets ``ends_by`` when it is stopped or this process dies: SIGKILL, because a graceful
        end would have effects on the others, or SIGTERM if it has a process of its own to end.
        """
        log_path = self.log_dir / f"{name}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log if stdout is None else stdout,
                stderr=log,
                env={**os.environ, "TMPDIR": str(self.log_dir), **(environment or {})},
                start_new_session=True,
                limit=LONGEST_LINE_BYTES,
                preexec_fn=_die_with_parent(ends_by),
            )
        child = Child(name, process, log_path, ends_by)
        self.started.append(child)
        return child

    def require_running(self) -> None:
        for child in self.started:
            child.require_running()

    async def wait_until(
        self, lacks: Callable[[], Awaitable[str]], *, child: Child, what: str, bound_s: float
    ) -> None:
        """Return when ``lacks`` returns ""; all children must be alive until then."""
        deadline_s = monotonic() + bound_s
        while lacking := await lacks():
            self.require_running()
            if monotonic() > deadline_s:
                raise ChildFailed(child, f"was not {what} within {bound_s:g} s: {lacking}")
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """End all children and what they left behind; kill those that do not end."""
        running = [child for child in reversed(self.started) if child.running]
        for child in running:
            child.send(child.ends_by)
        await _ended(running, KILL_AFTER_S)
        for child in running:
            with suppress(ProcessLookupError):
                os.killpg(child.process.pid, signal.SIGKILL)
        await _ended(running, KILL_AFTER_S)


def free_ports(count: int, first: int | None = None) -> tuple[int, ...]:
    """Return free ports; with ``first`` all from there must be free.

    Those for outgoing connections begin higher: none takes a port before its child listens on it.
    """
    if first is not None:
        ports = range(first, first + count)
        taken = [port for port in ports if not _is_free(port)]
        if taken:
            raise DemoFailed(f"--port-base {first}: port {taken[0]} is in use; {count} are needed")
        return tuple(ports)
    start = os.getpid() * 128 % len(PORTS_BELOW_EPHEMERAL)
    order = [*PORTS_BELOW_EPHEMERAL[start:], *PORTS_BELOW_EPHEMERAL[:start]]
    free = tuple(islice((port for port in order if _is_free(port)), count))
    if len(free) < count:
        raise DemoFailed(f"only {len(free)} of {count} ports are free on 127.0.0.1")
    return free


async def no_listener(port: int) -> str:
    """Return "" if a process listens on this loopback port, else the error."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError as error:
        return str(error)
    writer.close()
    with suppress(OSError):
        await writer.wait_closed()
    return ""


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            # On all addresses: other processes may listen on one that is not 127.0.0.1.
            probe.bind(("", port))
        except OSError:
            return False
    return True


async def _ended(children: Sequence[Child], bound_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(bound_s):
            await asyncio.gather(*(child.process.wait() for child in children))


def _die_with_parent(by: signal.Signals) -> Callable[[], None] | None:
    """Return a function for the start of a new process that ends it with this one, on Linux."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl
    parent = os.getpid()

    def ask_for_signal() -> None:
        prctl(PR_SET_PDEATHSIG, by)
        if os.getppid() != parent:  # the parent died before the line above
            os._exit(1)

    return ask_for_signal


def _ending(return_code: int | None) -> str:
    if return_code is not None and return_code < 0:
        return f"signal {signal.Signals(-return_code).name}"
    return f"exit code {return_code}"
