"""Clients that publish to every topic, as processes that may be killed."""

import asyncio
import json
import signal
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

import aiohttp
from fault_hosts import Host

from loadmanager.demo.children import Child, Children
from loadmanager.demo.client import TrafficReport
from loadmanager.demo.cluster import HASH, KNOWN_BROKERS, NAMESPACE
from loadmanager.demo.traffic import TrafficSettings
from tests.testbed.checker.publishes import Publish, publishes_in

ANSWER_TIMEOUT = aiohttp.ClientTimeout(total=1.0)
ORDER_TIMEOUT = aiohttp.ClientTimeout(total=30.0)
DONE = frozenset({HTTPStatus.OK, HTTPStatus.NO_CONTENT})


class Sidecars:
    def __init__(self, http: aiohttp.ClientSession) -> None:
        self._http = http

    async def unready(self, host: Host) -> str:
        status, text = await self._ask(f"{host.sidecar_url}/readyz")
        return "" if status == HTTPStatus.OK else f"sidecar-{host.number}: {text}"

    async def strangers(self, hosts: Sequence[Host]) -> str:
        """Return which sidecar does not know all brokers yet; "" if all do."""
        for host in hosts:
            if unready := await self.unready(host):
                return unready
            _, metrics = await self._ask(f"{host.sidecar_url}/metrics")
            found = KNOWN_BROKERS.search(metrics)
            if not found or int(float(found[1])) != len(hosts):
                return f"sidecar-{host.number} does not know all brokers"
        return ""

    async def leader(self, host: Host) -> str:
        status, text = await self._ask(f"{host.sidecar_url}/admin/v2/brokers/leaderBroker")
        return str(json.loads(text)["brokerId"]) if status == HTTPStatus.OK else "nobody"

    async def unload_all(self, host: Host) -> None:
        await self._put(f"{host.sidecar_url}/admin/v2/namespaces/{NAMESPACE}/unload", None)

    async def create_namespace(self, host: Host, bundles: int) -> None:
        body = {"bundles": {"numBundles": bundles}}
        await self._put(f"{host.sidecar_url}/admin/v2/namespaces/{NAMESPACE}", body)

    async def _ask(self, url: str) -> tuple[int, str]:
        try:
            async with self._http.get(url, timeout=ANSWER_TIMEOUT) as answer:
                return answer.status, await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return 0, repr(error)

    async def _put(self, url: str, body: object) -> None:
        async with self._http.put(url, json=body, timeout=ORDER_TIMEOUT) as answer:
            assert answer.status in DONE, f"PUT {url}: {answer.status} {await answer.text()}"


class PublishReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._found: list[Publish] = []

    def read(self) -> Sequence[Publish]:
        """Return every attempt; a line that is not whole yet is left to the next time."""
        with self._path.open("rb") as record:
            record.seek(self._offset)
            whole, end, _ = record.read().rpartition(b"\n")
        text = (whole + end).decode()
        self._found += publishes_in(text, f"{self._path} from byte {self._offset}")
        self._offset += len(whole) + len(end)
        return self._found


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
