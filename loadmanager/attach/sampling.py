"""What each broker serves and has counted, at one moment; and the traffic between two moments."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from loadmanager.adapters.pulsar_admin import PulsarAdmin, PulsarAdminError
from loadmanager.adapters.pulsar_admin.exposition import Exposition, read_exposition
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.host_figures import HostFigures, Hosts
from loadmanager.core.bundle_traffic import BundleTraffic, Counters, between, bundle_traffic
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.rates import Rates

_PARALLEL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One broker at one moment.

    Attributes:
        at_s: when its metrics had been read, on the monotonic clock of this process.
        owned: the bundles it serves.
        seen: what its metrics said.
        foreign: names of bundles that are none (of version 1, with a cluster in them).
        host: what the broker's load manager measured of its host, None where it is not needed.
    """

    at_s: float
    owned: tuple[BundleId, ...]
    seen: Exposition
    foreign: tuple[str, ...] = ()
    host: HostFigures | None = None

    @property
    def topics(self) -> Mapping[str, Counters]:
        """The counters of each topic."""
        return self.seen.topics


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """One broker over one window.

    Attributes:
        window_s: between the two readings of its metrics.
        bundles: the traffic of each bundle that it served at the end.
        topics: the traffic of each topic.
        usages: percent of the broker's resources, as its own load manager measured last.
        cpu_cores: what its process used, in cores; None if its metrics do not have it.
        homeless_topics: with counters, though no bundle of the broker holds them.
        began_s: when the window began, on the monotonic clock of this process.
        restarted: the broker's process began within the window.
        host: what the broker's host uses, None where it is not needed.
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
    def shows_since_s(self) -> float:
        """When what this shows began, on the same clock as ``began_s``."""
        if self.host is None:
            return self.began_s
        return min(self.began_s, self.began_s + self.window_s - self.host.age_s)


@dataclass(slots=True)
class Sampler:
    """Reads all brokers again and again; a window lies between two readings of a broker.

    ``hosts`` says how their hosts are read, too; None reads none.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    hosts: Hosts | None = None
    _former: dict[BrokerId, Reading] = field(default_factory=dict)

    async def sample(
        self, cluster: PulsarCluster
    ) -> tuple[Mapping[BrokerId, BrokerSample], Mapping[BrokerId, str]]:
        """Read all brokers; return the samples, and why others have none yet."""
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
        owned, foreign = await read_owned(self.admin, url, cluster.name, broker)
        host = None
        if self.hosts is not None:
            host = await self.hosts.measured(self.admin, url, cluster, seen)
        return Reading(at_s=at_s, owned=owned, seen=seen, foreign=foreign, host=host)

    def _sample(self, former: Reading, reading: Reading) -> BrokerSample:
        window_s = max(reading.at_s - former.at_s, 1e-3)
        window = between(former.topics, reading.topics, window_s)
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
