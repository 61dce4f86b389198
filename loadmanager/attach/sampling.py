"""Bundles and counters of each broker at one time, and the traffic between two such readings."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from loadmanager.adapters.pulsar_admin import PulsarAdmin, PulsarAdminError
from loadmanager.adapters.pulsar_admin.exposition import Exposition, read_exposition
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.host_figures import HostFigures, Hosts
from loadmanager.core.bundle_traffic import BundleTraffic, between, bundle_traffic
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.rates import Rates, total

_PARALLEL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One broker at one time.

    Attributes:
        at_s: when its metrics had been read, on the monotonic clock of this process.
        owned: the bundles that it serves.
        seen: its metrics.
        host: host usage as its load manager measured it, None if the strategy needs none.
    """

    at_s: float
    owned: tuple[BundleId, ...]
    seen: Exposition
    host: HostFigures | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """One broker over one window.

    Attributes:
        window_s: length, between the two readings of its metrics.
        bundles: the traffic of each bundle that it served at the end.
        topics: the traffic of each topic.
        usages: usage of its resources in percent, as its load manager last measured it.
        cpu_cores: CPU usage of its process, in cores; None if unknown, as after a restart.
        homeless_topics: number of topics with counters that are in none of its bundles.
        began_s: when the window began, on the monotonic clock of this process.
        restarted: whether its process was restarted within the window.
        host: usage of its host, None if the strategy needs none.
    """

    window_s: float
    bundles: Mapping[BundleId, BundleTraffic]
    topics: Mapping[str, Rates] = field(default_factory=dict)
    usages: Mapping[str, float] = field(default_factory=dict)
    cpu_cores: float | None = None
    homeless_topics: int = 0
    began_s: float = 0.0
    restarted: bool = False
    host: HostFigures | None = None

    @property
    def total(self) -> Rates:
        """The traffic of all its bundles."""
        return total(self.bundles.values())

    @property
    def topics_in_bundles(self) -> int:
        """Number of topics in its bundles."""
        return sum(one.topics for one in self.bundles.values())

    @property
    def shows_since_s(self) -> float:
        """Start of the period that traffic and host usage cover, on the clock of ``began_s``."""
        if self.host is None:
            return self.began_s
        return min(self.began_s, self.began_s + self.window_s - self.host.age_s)


@dataclass(slots=True)
class Sampler:
    """Reads all brokers repeatedly; a window lies between two readings of a broker.

    ``hosts`` also reads the usage of their hosts; with None it is not read.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    hosts: Hosts | None = None
    _former: dict[BrokerId, Reading] = field(default_factory=dict)

    async def sample(
        self, cluster: PulsarCluster
    ) -> tuple[Mapping[BrokerId, BrokerSample], Mapping[BrokerId, str]]:
        """Read all brokers; return the samples, and the reason by broker without one."""
        parallel = asyncio.Semaphore(_PARALLEL)

        async def bounded(broker: BrokerId) -> Reading:
            async with parallel:
                return await self._read(cluster, broker)

        readings = await asyncio.gather(
            *(bounded(broker) for broker in cluster.brokers), return_exceptions=True
        )
        samples: dict[BrokerId, BrokerSample] = {}
        missing: dict[BrokerId, str] = {}
        for broker, reading in zip(cluster.brokers, readings, strict=True):
            if isinstance(reading, PulsarAdminError):
                missing[broker] = str(reading)
                self._former.pop(broker, None)
            elif isinstance(reading, BaseException):
                raise reading
            else:
                former = self._former.get(broker)
                self._former[broker] = reading
                if former is None:
                    missing[broker] = "its second reading is not there yet"
                else:
                    samples[broker] = self._sample(former, reading)
        for gone in self._former.keys() - set(cluster.brokers):
            del self._former[gone]
        return samples, missing

    async def _read(self, cluster: PulsarCluster, broker: BrokerId) -> Reading:
        url = self.address(broker)
        seen = await read_exposition(self.admin.lines(f"{url}/metrics/"))
        at_s = monotonic()
        owned = await read_owned(self.admin, url, cluster.name, broker)
        host = None
        if self.hosts is not None:
            host = await self.hosts.measured(self.admin, url, cluster, seen)
        return Reading(at_s=at_s, owned=owned, seen=seen, host=host)

    def _sample(self, former: Reading, reading: Reading) -> BrokerSample:
        window_s = max(reading.at_s - former.at_s, 1e-3)
        window = between(former.seen.topics, reading.seen.topics, window_s)
        bundles, homeless = bundle_traffic(reading.owned, window)
        then, now = former.seen.cpu_seconds, reading.seen.cpu_seconds
        counted = None if then is None or now is None else now - then
        # A restarted process has counted less than the one before.
        restarted = counted is not None and counted < 0
        cpu_cores = None if counted is None or restarted else counted / window_s
        host = reading.host
        if self.hosts is not None and host is not None:
            host = self.hosts.completed(host, cpu_cores, window_s)
        return BrokerSample(
            window_s=window_s,
            bundles=bundles,
            topics=window.rates,
            usages=reading.seen.usages,
            cpu_cores=cpu_cores,
            homeless_topics=homeless,
            began_s=former.at_s,
            restarted=restarted,
            host=host,
        )
