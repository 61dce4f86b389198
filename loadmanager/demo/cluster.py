"""The cluster of the demo: its settings, and ZooKeeper, brokers and sidecars as child processes."""

import asyncio
import ctypes
import json
import os
import re
import secrets
import signal
import socket
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Final, Self

import aiohttp

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId
from loadmanager.demo.traffic import request

LEADER: Final = "leader"
AFTER_KILL_S: Final = 40.0
"""How long a demo without a duration goes on after the last kill: ten takeovers."""

MEAN_LOAD_FRACTION: Final = 0.40
CPU_BUDGET_CORES: Final = 0.24
"""CPU that all brokers together spend on messages: little enough for two cores."""

MAX_CPU_MS_PER_MESSAGE: Final = 2.0
OVERHEAD_MS_PER_MESSAGE: Final = 1.0
"""CPU that a broker needs for the HTTP request of a message, besides the configured one."""

IDLE_CORES: Final = 0.01
"""CPU that a broker needs for the requests of its sidecar alone."""


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill a broker, by number or the ``leader``, so long after the traffic began."""

    target: str
    at_s: float

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the kill of a text such as ``leader@15``, ``2@15`` or ``broker-2@15``."""
        target, _, at_s = text.partition("@")
        target = target.removeprefix("broker-")
        if target != LEADER:
            if not (target.isdecimal() and int(target) > 0):
                raise ValueError(f"{text!r}: expected leader@SECONDS or NUMBER@SECONDS")
            target = str(int(target))
        try:
            seconds = float(at_s)
        except ValueError:
            raise ValueError(f"{text!r}: expected seconds after the @") from None
        if not 0 < seconds < float("inf"):
            raise ValueError(f"{text!r}: expected more than 0 seconds")
        return cls(target, seconds)

    def __str__(self) -> str:
        return f"{self.target}@{self.at_s:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """The settings of a demo, checked on construction.

    ``duration_s`` counts from the beginning of the traffic; see `ends_at_s` for None. ``program``
    is the command that starts `loadmanager`. Without ``port_base`` ports are any free ones.
    """

    data_dir: Path
    brokers: int = 4
    bundles: int = 32
    topics: int = 200
    duration_s: float | None = None
    seed: int = 1
    kills: tuple[Kill, ...] = ()
    rate_per_s: float = 120.0
    port_base: int | None = None
    history_dir: Path | None = None
    program: str = "loadmanager"

    def __post_init__(self) -> None:
        if self.bundles < self.brokers:
            raise ValueError(f"--bundles {self.bundles}: expected at least one a broker")
        if self.topics < self.bundles:
            raise ValueError(f"--topics {self.topics}: expected at least one a bundle")
        if len(self.kills) > self.brokers - 1:
            raise ValueError(f"--kill: expected at most {self.brokers - 1}, so that one remains")
        times = Counter(kill.target for kill in self.kills)
        for kill in self.kills:
            target = kill.target
            if self.duration_s is not None and kill.at_s >= self.duration_s:
                raise ValueError(f"--kill {kill}: expected before the end at {self.duration_s:g} s")
            if target != LEADER and int(target) > self.brokers:
                raise ValueError(f"--kill {kill}: expected broker 1 to {self.brokers}")
            if target != LEADER and times[target] > 1:
                raise ValueError(f"--kill {target}@...: given {times[target]} times; expected once")

    @property
    def ends_at_s(self) -> float | None:
        """The end, counted from the beginning of the traffic; None for Ctrl-C."""
        if self.duration_s is not None or not self.kills:
            return self.duration_s
        return max(kill.at_s for kill in self.kills) + AFTER_KILL_S

    @property
    def cpu_ms_per_message(self) -> float:
        """The CPU time of a broker for each message; less for many messages."""
        return min(MAX_CPU_MS_PER_MESSAGE, 1000 * CPU_BUDGET_CORES / self.rate_per_s)

    @property
    def cores_per_broker(self) -> float:
        """The cores that count as all that a broker has: the mean load is about 40 percent then."""
        cost_s = (self.cpu_ms_per_message + OVERHEAD_MS_PER_MESSAGE) / 1000
        mean_cores = self.rate_per_s / self.brokers * cost_s + IDLE_CORES
        return round(mean_cores / MEAN_LOAD_FRACTION, 3)

    def to_json(self) -> dict[str, object]:
        given = ("brokers", "bundles", "topics", "duration_s", "seed", "rate_per_s")
        return {name: getattr(self, name) for name in given} | {
            "kill": [str(kill) for kill in self.kills],
            "cpu_ms_per_message": self.cpu_ms_per_message,
            "cores_per_broker": self.cores_per_broker,
        }


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
        code = self.process.returncode
        if code is not None and not self.ending:
            ending = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            raise ChildFailed(self, f"ended with {ending}")

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


HOST: Final = "127.0.0.1"
NAMESPACE: Final = "public/demo"
HASH: Final = "crc32"
READY_BOUND_S: Final = 60.0
QUESTION_TIMEOUT: Final = aiohttp.ClientTimeout(total=2.0)
ADMIN_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
TICK_MS: Final = 500
SAMPLE_S: Final = 2.0
SETTLE_S: Final = 12.0
"""Long enough to observe the skewed traffic for some seconds before the first move."""

KNOWN_BROKERS: Final = re.compile(
    r'^loadmanager_picture_entries\{what="brokers"\} (\S+)', re.MULTILINE
)

Table = Mapping[str, Mapping[str, Any]]


@dataclass(slots=True)
class Member:
    """A broker with its sidecar. It was certainly dead at ``dead_at_s`` if it was killed."""

    number: int
    broker: BrokerId
    sidecar_url: str
    record_path: Path
    processes: tuple[Child, ...] = ()
    killed: bool = False
    dead_at_s: float | None = None

    @property
    def name(self) -> str:
        return f"broker-{self.number}"


class Cluster:
    """Starts the processes, waits until they are ready, and kills them on demand."""

    def __init__(
        self, settings: DemoSettings, children: Children, http: aiohttp.ClientSession
    ) -> None:
        self._settings = settings
        self._children = children
        self._http = http
        self.control_secret = secrets.token_hex(32)
        self._secret_path = settings.data_dir / "control-secret"
        ports = free_ports(1 + 2 * settings.brokers, settings.port_base)
        self.zookeeper = f"{HOST}:{ports[0]}"
        self._zookeeper_port = ports[0]
        pairs = zip(ports[1::2], ports[2::2], strict=True)
        self.members: Sequence[Member] = tuple(
            Member(
                number,
                BrokerId(f"{HOST}:{broker_port}"),
                f"http://{HOST}:{sidecar_port}",
                settings.data_dir / f"broker-{number}.record",
            )
            for number, (broker_port, sidecar_port) in enumerate(pairs, start=1)
        )

    @property
    def alive(self) -> tuple[Member, ...]:
        """The members that the demo has not killed."""
        return tuple(member for member in self.members if not member.killed)

    async def start(self, announce: Callable[[str], None]) -> None:
        self._secret_path.write_text(self.control_secret)
        self._secret_path.chmod(0o600)
        announce(f"starting ZooKeeper and {len(self.members)} brokers")
        zookeeper = await self._start_zookeeper()
        brokers = [await self._start_broker(member) for member in self.members]
        await self._children.wait_until(
            lambda: no_listener(self._zookeeper_port),
            child=zookeeper,
            what="listening",
            bound_s=READY_BOUND_S,
        )
        announce("starting a sidecar beside each broker, until every one knows them all")
        for member, broker in zip(self.members, brokers, strict=True):
            member.processes = (broker, await self._start_sidecar(member))
        await asyncio.gather(*(self._wait_until_ready(member) for member in self.members))
        await self._create_namespace()

    async def kill(self, member: Member) -> None:
        """Kill broker and sidecar at the same time, as a power failure would."""
        member.killed = True
        for child in member.processes:
            child.send(signal.SIGKILL)
        await asyncio.gather(*(child.process.wait() for child in member.processes))
        member.dead_at_s = monotonic()

    async def _start_zookeeper(self) -> Child:
        """Start one without a data directory, so that no write waits for the disk."""
        return await self._children.start(
            "zookeeper",
            *("-m", "loadmanager", "zookeeper"),
            *("--port", str(self._zookeeper_port)),
            *("--tick-ms", str(TICK_MS)),
            ends_by=signal.SIGTERM,
        )

    async def _start_broker(self, member: Member) -> Child:
        return await self._children.start(
            member.name,
            *("-m", "loadmanager", "broker"),
            *("--listen", member.broker),
            *("--control-secret-file", str(self._secret_path)),
            *("--record", str(member.record_path)),
            *("--cpu-ms-per-message", f"{self._settings.cpu_ms_per_message:g}"),
        )

    async def _start_sidecar(self, member: Member) -> Child:
        path = self._settings.data_dir / f"sidecar-{member.number}.toml"
        path.write_text(to_toml(self._sidecar_settings(member)))
        name = f"sidecar-{member.number}"
        return await self._children.start(name, "-m", "loadmanager", "agent", "--config", str(path))

    def _sidecar_settings(self, member: Member) -> Table:
        """Return the configuration of a sidecar, with shorter times than in a real cluster.

        The interval of rounds is long enough that loads show the effect of the last one.
        """
        history: Table = {}
        if self._settings.history_dir is not None:
            history = {
                "history": {
                    "dir": str(self._settings.history_dir),
                    "flush_interval_s": 1.0,
                    "base_every_rounds": 5,
                    "max_age_days": 0.0,
                    "max_size_gib": 0.0,
                }
            }
        return {
            "broker": {"id": member.broker, "control_secret_file": str(self._secret_path)},
            "sidecar": {
                "listen_host": HOST,
                "listen_port": int(member.sidecar_url.split(":")[-1]),
                "health_port": 0,
            },
            "cluster": {"name": "demo"},
            "zookeeper": {"hosts": self.zookeeper, "session_timeout_s": 4.0},
            "host": {"scope": "process", "cores": self._settings.cores_per_broker},
            "report": {"sample_interval_s": SAMPLE_S, "min_interval_s": 1.0, "max_interval_s": 5.0},
            "leader": {"round_interval_s": 4.0, "tick_interval_s": 1.0, "settle_s": SETTLE_S},
            "shedding": {"grace_period_s": 15.0},
            "lookup": {"wait_s": 15.0},
            "log": {"format": "console"},
            **history,
        }

    @property
    def sidecar_settings(self) -> Table:
        sections = self._sidecar_settings(self.members[0]).items()
        return {name: keys for name, keys in sections if name not in ("broker", "sidecar")}

    async def _wait_until_ready(self, member: Member) -> None:
        async def lack_of_broker() -> str:
            status, text = await self._ask(f"http://{member.broker}/loadmanager-broker/v1/health")
            return "" if status == HTTPStatus.OK else text

        async def lack_of_sidecar() -> str:
            status, text = await self._ask(f"{member.sidecar_url}/readyz")
            if status != HTTPStatus.OK:
                return text
            _, metrics = await self._ask(f"{member.sidecar_url}/metrics")
            found = KNOWN_BROKERS.search(metrics)
            known, all_of_them = int(float(found[1])) if found else 0, len(self.members)
            return "" if known == all_of_them else f"knows {known} of {all_of_them} brokers"

        broker, sidecar = member.processes
        wait, bound_s = self._children.wait_until, READY_BOUND_S
        await wait(lack_of_broker, child=broker, what="healthy", bound_s=bound_s)
        await wait(lack_of_sidecar, child=sidecar, what="ready", bound_s=bound_s)

    async def _ask(self, url: str) -> tuple[int, str]:
        return await request(self._http, "GET", url, timeout=QUESTION_TIMEOUT)

    async def _create_namespace(self) -> None:
        url = f"{self.members[0].sidecar_url}/admin/v2/namespaces/{NAMESPACE}"
        body = {"bundles": {"numBundles": self._settings.bundles}}
        status, text = await request(self._http, "PUT", url, json=body, timeout=ADMIN_TIMEOUT)
        if status not in (HTTPStatus.OK, HTTPStatus.NO_CONTENT):
            raise DemoFailed(f"PUT {url}: {status} {text}; expected 204")


def to_toml(table: Table) -> str:
    """Return sections of plain values as TOML, in which they look as in JSON."""
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())
        for section, keys in table.items()
    )
