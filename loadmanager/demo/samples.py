"""Samples of the cluster over HTTP, from the sidecars and the brokers, as operators get them."""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from time import monotonic
from typing import Any, Final

import aiohttp

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.demo.client import request
from loadmanager.demo.cluster import Member

SAMPLE_TIMEOUT: Final = aiohttp.ClientTimeout(total=1.0)
CPU_USAGE: Final = re.compile(
    r'^pulsar_lb_cpu_usage\{[^}]*broker="([^"]*)"[^}]*\} (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """The answers of one broker and its sidecar.

    A value is None without an answer, or before the first measurement. ``cpu_fraction`` is of the
    broker's own CPU and may exceed 1. ``bundles`` are the served ones, each with its messages per
    second.
    """

    name: str
    broker: BrokerId
    killed: bool = False
    cpu_fraction: float | None = None
    bundles: Mapping[BundleId, float] | None = None

    @property
    def msgs_per_s(self) -> float:
        """Messages per second into all bundles."""
        return sum((self.bundles or {}).values())

    @property
    def state(self) -> str:
        """Its state in the table."""
        if self.killed:
            return "killed"
        return "serving" if self.bundles is not None else "no answer"


@dataclass(frozen=True, slots=True)
class ClusterSample:
    """All brokers at one time of the monotonic clock, and the leader."""

    at_s: float
    leader: BrokerId | None
    brokers: Sequence[BrokerSample] = field(default_factory=tuple)

    @property
    def loads(self) -> dict[BrokerId, float]:
        """The load of each live broker that reported it."""
        return {
            b.broker: b.cpu_fraction
            for b in self.brokers
            if not b.killed and b.cpu_fraction is not None
        }

    @property
    def owners(self) -> dict[BundleId, BrokerId]:
        """The brokers that serve each bundle, by their own statistics."""
        return {bundle: b.broker for b in self.brokers for bundle in b.bundles or ()}


def cpu_fraction(metrics: str, broker: BrokerId) -> float | None:
    """Return the CPU usage of ``broker`` in a Prometheus scrape, which has it in percent."""
    for label, percent in CPU_USAGE.findall(metrics):
        if label == broker:
            return float(percent) / 100
    return None


def served_rates(stats: Mapping[str, Any]) -> dict[BundleId, float]:
    """Return the messages per second into each bundle from a broker's stats."""
    return {BundleId(b): float(s.get("msgRateIn", 0.0)) for b, s in stats["bundles"].items()}


class Observer:
    """Requests samples from all living members at the same time.

    Args:
        http: the session of the requests.
        members: the brokers and sidecars.
        control_secret: the secret that brokers require for their statistics.
    """

    def __init__(
        self, http: aiohttp.ClientSession, members: Sequence[Member], control_secret: str
    ) -> None:
        self._http = http
        self._members = members
        self._to_broker = {"Authorization": f"Bearer {control_secret}"}

    async def sample(self) -> ClusterSample:
        """Return the answers of all brokers; a broker has a second to answer."""
        at_s = monotonic()
        leader, brokers = await asyncio.gather(
            self._leader(), asyncio.gather(*(self._sample_of(member) for member in self._members))
        )
        return ClusterSample(at_s, leader, tuple(brokers))

    async def _sample_of(self, member: Member) -> BrokerSample:
        if member.killed:
            return BrokerSample(name=member.name, broker=member.broker, killed=True)
        metrics, stats = await asyncio.gather(
            self._get(f"{member.sidecar_url}/metrics"),
            self._get(f"http://{member.broker}/loadmanager-broker/v1/stats", self._to_broker),
        )
        return BrokerSample(
            name=member.name,
            broker=member.broker,
            killed=member.killed,
            cpu_fraction=None if metrics is None else cpu_fraction(metrics, member.broker),
            bundles=None if stats is None else served_rates(json.loads(stats)),
        )

    async def _leader(self) -> BrokerId | None:
        """Return the leader as the first living sidecar that answers names it."""
        for member in self._members:
            if member.killed:
                continue
            text = await self._get(f"{member.sidecar_url}/admin/v2/brokers/leaderBroker")
            if text is not None:
                return BrokerId(json.loads(text)["brokerId"])
        return None

    async def _get(self, url: str, headers: Mapping[str, str] | None = None) -> str | None:
        options = {"headers": headers, "timeout": SAMPLE_TIMEOUT}
        status, text = await request(self._http, "GET", url, **options)
        return text if status == HTTPStatus.OK else None
