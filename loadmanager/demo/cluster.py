"""The cluster of the demo: ZooKeeper, brokers and their sidecars, each in a process of its own."""

import asyncio
import json
import re
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiohttp

from loadmanager.core.ids import BrokerId
from loadmanager.demo.children import Child, Children, DemoFailed, free_ports, no_listener
from loadmanager.demo.client import request
from loadmanager.demo.settings import DemoSettings

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
            **self._history_settings(),
        }

    def _history_settings(self) -> Table:
        """Return the section of history, with intervals that are short enough for a short demo."""
        directory = self._settings.history_dir
        if directory is None:
            return {}
        settings = {"dir": str(directory), "flush_interval_s": 1.0, "base_every_rounds": 5}
        return {"history": {**settings, "max_age_days": 0.0, "max_size_gib": 0.0}}

    @property
    def sidecar_settings(self) -> Table:
        sections = self._sidecar_settings(self.members[0]).items()
        return {name: keys for name, keys in sections if name not in ("broker", "sidecar")}

    async def _wait_until_ready(self, member: Member) -> None:
        lacks = (lambda: self._lack_of_broker(member), lambda: self._lack_of_sidecar(member))
        for child, lack, what in zip(member.processes, lacks, ("healthy", "ready"), strict=True):
            bound_s = READY_BOUND_S
            await self._children.wait_until(lack, child=child, what=what, bound_s=bound_s)

    async def _lack_of_broker(self, member: Member) -> str:
        status, text = await self._ask(f"http://{member.broker}/loadmanager-broker/v1/health")
        return "" if status == HTTPStatus.OK else text

    async def _lack_of_sidecar(self, member: Member) -> str:
        status, text = await self._ask(f"{member.sidecar_url}/readyz")
        if status != HTTPStatus.OK:
            return text
        _, metrics = await self._ask(f"{member.sidecar_url}/metrics")
        found = KNOWN_BROKERS.search(metrics)
        known = int(float(found[1])) if found else 0
        return "" if known == len(self.members) else f"knows {known} of {len(self.members)} brokers"

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
