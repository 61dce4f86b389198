"""A cluster of real processes whose brokers speak Pulsar's protocol, and its real clients."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
from cluster_processes import ProcessCluster, SharingCluster

from loadmanager.adapters.zookeeper.java import EmbeddedZooKeeperError, find_java
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.core.ids import Namespace, TopicName
from loadmanager.demo.children import Child, Children, free_ports
from loadmanager.demo.cluster import HOST, NAMESPACE, Member
from loadmanager.demo.settings import DemoSettings

SUBSCRIPTION: Final = "all"
RECEIVE_MS: Final = 200
ADMIN_TIMEOUT: Final = aiohttp.ClientTimeout(total=60)


class PulsarCluster(SharingCluster):
    def __init__(
        self,
        settings: DemoSettings,
        children: Children,
        http: aiohttp.ClientSession,
        cpu_ms_per_message: float,
        hash_name: HashName,
    ) -> None:
        super().__init__(settings, children, http)
        self.hash_name = hash_name
        self.cpu_ms_per_message = cpu_ms_per_message
        # The same ones come first as for the others, so the last of more are taken.
        ports = free_ports(1 + 3 * len(self.members))[-len(self.members) :]
        self.pulsar_ports: Mapping[int, int] = {
            member.number: port for member, port in zip(self.members, ports, strict=True)
        }

    async def _start_broker(self, member: Member) -> Child:
        return await self._children.start(
            member.name,
            *("-m", "tests.testbed.pulsar_broker"),
            *("--listen", member.broker),
            *("--record", str(member.record_path)),
            *("--cpu-ms-per-message", f"{self.cpu_ms_per_message:g}"),
            *("--hash", self.hash_name),
            *("--pulsar-listen", f"{HOST}:{self.pulsar_ports[member.number]}"),
            *("--ledger", str(self._settings.data_dir / "ledger")),
        )

    def _sidecar_settings(self, member: Member) -> Mapping[str, Mapping[str, Any]]:
        told = dict(super()._sidecar_settings(member))
        url = f"pulsar://{HOST}:{self.pulsar_ports[member.number]}"
        told["broker"] = {**told["broker"], "broker_url": url}
        # Unset it is Pulsar's.
        if self.hash_name != DEFAULT_HASH:
            told["cluster"] = {**told["cluster"], "hash": self.hash_name}
        return told


@asynccontextmanager
async def pulsar_cluster(
    data_dir: Path,
    *,
    brokers: int,
    bundles: int,
    cpu_ms_per_message: float = 0.05,
    hash_name: HashName = DEFAULT_HASH,
) -> AsyncIterator[ProcessCluster]:
    try:
        find_java()
    except EmbeddedZooKeeperError as error:
        pytest.skip(str(error))
    settings = DemoSettings(data_dir=data_dir, brokers=brokers, bundles=bundles, topics=bundles)
    children = Children(data_dir)
    boundaries = Boundaries.even(Namespace(NAMESPACE), bundles)
    try:
        async with aiohttp.ClientSession(timeout=ADMIN_TIMEOUT) as http:
            cluster = PulsarCluster(settings, children, http, cpu_ms_per_message, hash_name)
            yield ProcessCluster(
                cluster=cluster, children=children, http=http, boundaries=boundaries
            )
    finally:
        await children.stop()


@dataclass(slots=True)
class Stream:
    """One topic with a producer that sends again and again and a consumer that reads it.

    Every message is a number that counts up; the threads end at `stop_sending` and
    `stop_receiving`, or at the first error a client reports, which is kept.
    """

    client: Any
    topic: TopicName
    consumer_type: Any
    pause_s: float = 0.003
    acknowledged: list[int] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    _sending: threading.Event = field(default_factory=threading.Event)
    _receiving: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)

    def start(self) -> None:
        consumer = self.client.subscribe(
            str(self.topic), SUBSCRIPTION, consumer_type=self.consumer_type
        )
        producer = self.client.create_producer(str(self.topic), send_timeout_millis=60_000)
        for loop, end in ((self._receive, consumer), (self._send, producer)):
            thread = threading.Thread(target=self._guarded, args=(loop, end), daemon=True)
            self._threads.append(thread)
            thread.start()

    async def stop_sending(self) -> None:
        self._sending.set()
        await asyncio.to_thread(self._threads[1].join)

    async def stop_receiving(self) -> None:
        self._receiving.set()
        await asyncio.to_thread(self._threads[0].join)

    @property
    def missing(self) -> set[int]:
        return set(self.acknowledged) - set(self.received)

    @property
    def repeated(self) -> int:
        return len(self.received) - len(set(self.received))

    def _guarded(self, loop: Callable[[Any], None], end: Any) -> None:
        try:
            loop(end)
        except Exception as error:  # noqa: BLE001 - the client's errors have no common parent
            self.errors.append(f"{self.topic}: {loop.__name__}: {error!r}")

    def _send(self, producer: Any) -> None:
        number = 0
        while not self._sending.is_set():
            producer.send(str(number).encode())
            self.acknowledged.append(number)
            number += 1
            self._sending.wait(self.pause_s)

    def _receive(self, consumer: Any) -> None:
        import pulsar  # noqa: PLC0415 - absent where its tests are skipped

        while not self._receiving.is_set():
            with suppress(pulsar.Timeout):
                message = consumer.receive(timeout_millis=RECEIVE_MS)
                self.received.append(int(message.data()))
                consumer.acknowledge(message)
