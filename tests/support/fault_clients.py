"""Clients that publish to every topic, as processes that may be killed."""

import asyncio
import signal
from collections.abc import Sequence
from pathlib import Path

from fault_hosts import Host
from fault_records import PublishReader

from loadmanager.demo.children import Child, Children
from loadmanager.demo.client import TrafficReport
from loadmanager.demo.cluster import HASH, NAMESPACE
from loadmanager.demo.traffic import TrafficSettings
from tests.testbed.checker.publishes import Publish

BUNDLES = 12
TOPICS = 24
RATE_PER_S = 60.0
CLIENTS = 2


class Clients:
    def __init__(self, data_dir: Path, hosts: Sequence[Host], children: Children) -> None:
        self._data_dir = data_dir
        self._hosts = hosts
        self._children = children
        self._started: list[Child] = []
        self._records: dict[str, PublishReader] = {}
        self._reports: dict[str, TrafficReport] = {}
        self._reading: dict[str, asyncio.Task[None]] = {}

    @property
    def running(self) -> Sequence[Child]:
        return [client for client in self._started if client.running]

    async def start_missing(self) -> None:
        while len(self.running) < CLIENTS:
            await self._start_one()

    async def finish(self) -> Sequence[TrafficReport]:
        finishing = self.running
        for client in finishing:
            client.send(signal.SIGTERM)
        await asyncio.gather(*(self._reading[client.name] for client in finishing))
        return [self._reports[client.name] for client in finishing]

    def unheard(self) -> str:
        """Return which living client had nothing taken yet; "" if all are at work."""
        names = [client.name for client in self.running]
        heard = (any(one.acknowledgement for one in self._records[name].read()) for name in names)
        return ", ".join(name for name, at_work in zip(names, heard, strict=True) if not at_work)

    def publishes(self) -> list[Publish]:
        return [one for record in self._records.values() for one in record.read()]

    async def _start_one(self) -> None:
        number = len(self._started) + 1
        name = f"client-{number}"
        path, record = self._data_dir / f"{name}.json", self._data_dir / f"{name}.publishes"
        record.touch()
        TrafficSettings(
            sidecar_urls=tuple(host.sidecar_url for host in self._hosts),
            namespace=NAMESPACE,
            hash_name=HASH,
            bundles=BUNDLES,
            topics=TOPICS,
            seed=number,
            rate_per_s=RATE_PER_S / CLIENTS,
            lookups_per_s=5.0,
            attempt_timeout_s=1.5,
        ).save(path)
        arguments = ("-m", "tests.testbed.checker.publishes", str(path), str(record))
        child = await self._children.start(name, *arguments, stdout=asyncio.subprocess.PIPE)
        self._started.append(child)
        self._records[name] = PublishReader(record)
        self._reading[name] = asyncio.create_task(self._read_reports(child))

    async def _read_reports(self, client: Child) -> None:
        stdout = client.process.stdout
        while stdout is not None and (line := await stdout.readline()):
            self._reports[client.name] = TrafficReport.from_line(line.decode())
