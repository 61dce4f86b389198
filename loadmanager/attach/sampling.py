import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from loadmanager.adapters.pulsar_admin import PulsarAdmin
from loadmanager.adapters.pulsar_admin.exposition import Exposition, read_exposition
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.attach.discovery import PulsarCluster, ask_each
from loadmanager.attach.hosts import HostFigures, Hosts
from loadmanager.core.bundle_traffic import BundleTraffic, between, bundle_traffic
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.rates import Rates, total

_PARALLEL = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """One broker over one window, of the length ``window_s``.

    ``bundles`` are those that it served at the end. ``usages`` are in percent, as its load manager
    last measured them; ``cpu_cores`` is of its process, None if unknown, as after a restart.
    ``homeless_topics`` counts topics with counters that are in none of its bundles. ``began_s`` is
    on the monotonic clock of this process. ``host`` is None if the strategy needs none.
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
        return total(self.bundles.values())

    @property
    def topics_in_bundles(self) -> int:
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
    _former: dict[BrokerId, tuple[float, Exposition]] = field(default_factory=dict)

    async def sample(
        self, cluster: PulsarCluster
    ) -> tuple[Mapping[BrokerId, BrokerSample], Mapping[BrokerId, str]]:
        parallel = asyncio.Semaphore(_PARALLEL)

        async def bounded(broker: BrokerId) -> BrokerSample | None:
            async with parallel:
                return await self._sample(cluster, broker)

        answers, missing = await ask_each(cluster.brokers, bounded)
        for gone in self._former.keys() - answers.keys():
            del self._former[gone]
        samples = {broker: one for broker, one in answers.items() if one is not None}
        first = [broker for broker in answers if broker not in samples]
        return samples, {**missing, **dict.fromkeys(first, "its second reading is not there yet")}

    async def _sample(self, cluster: PulsarCluster, broker: BrokerId) -> BrokerSample | None:
        url = self.address(broker)
        seen = await read_exposition(self.admin.lines(f"{url}/metrics/"))
        at_s = monotonic()
        owned = await read_owned(self.admin, url, cluster.name, broker)
        host = None
        if self.hosts is not None:
            host = await self.hosts.measured(self.admin, url, cluster, seen)
        former, self._former[broker] = self._former.get(broker), (at_s, seen)
        if former is None:
            return None
        began_s, before = former
        window_s = max(at_s - began_s, 1e-3)
        window = between(before.topics, seen.topics, window_s)
        bundles, homeless = bundle_traffic(owned, window)
        then, now = before.cpu_seconds, seen.cpu_seconds
        counted = None if then is None or now is None else now - then
        # A restarted process has counted less than the one before.
        restarted = counted is not None and counted < 0
        cpu_cores = None if counted is None or restarted else counted / window_s
        if self.hosts is not None and host is not None:
            host = self.hosts.completed(broker, host, cpu_cores, window_s)
        return BrokerSample(
            window_s=window_s,
            bundles=bundles,
            topics=window.rates,
            usages=seen.usages,
            cpu_cores=cpu_cores,
            homeless_topics=homeless,
            began_s=began_s,
            restarted=restarted,
            host=host,
        )
