import asyncio
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from loadmanager.adapters.pulsar_admin import NotPulsar, PulsarAdmin
from loadmanager.adapters.pulsar_admin.exposition import Exposition, Moment, read_exposition
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.attach.discovery import BUFFERS, PulsarCluster, ask_each
from loadmanager.attach.hosts import HostFigures, Hosts
from loadmanager.core.bundle_traffic import NO_TRAFFIC, BundleTraffic, between, bundle_traffic
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.rates import Rates, total

_PARALLEL = 16
_LEAST_S = 1e-3

LONGEST_REPEATED_S: Final = 90.0
"""After this time counters that stand still are no repeated page: nothing is counted."""

_UNKNOWN: Final = BundleTraffic(partial=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSample:
    """One broker over one window, of the length ``window_s``.

    ``bundles`` are those that it served at the end. ``usages`` are in percent, as its load manager
    last measured them; ``cpu_cores`` is of its process, None if unknown, as after a restart.
    ``homeless`` is the traffic of topics in none of its bundles, and of its totals what no topic
    has. ``began_s`` is on the monotonic clock of this process. ``repeated_s`` is how long its page
    of metrics has been repeated. ``host`` is None if the strategy needs none.
    """

    window_s: float
    bundles: Mapping[BundleId, BundleTraffic]
    topics: Mapping[str, Rates] = field(default_factory=dict)
    usages: Mapping[str, float] = field(default_factory=dict)
    cpu_cores: float | None = None
    homeless: BundleTraffic = NO_TRAFFIC
    began_s: float = 0.0
    restarted: bool = False
    repeated_s: float = 0.0
    host: HostFigures | None = None

    @property
    def total(self) -> Rates:
        """Lasting traffic, by which bundles are moved."""
        return total(self.bundles.values())

    @property
    def passing(self) -> Rates:
        return total([one.passing for one in self.bundles.values()])

    @property
    def topics_in_bundles(self) -> int:
        return sum(one.topics for one in self.bundles.values())

    @property
    def shows_since_s(self) -> float:
        """Start of the period that traffic and host usage cover, on the clock of ``began_s``."""
        if self.host is None:
            return self.began_s
        return min(self.began_s, self.began_s + self.window_s - self.host.age_s)


@dataclass(slots=True, kw_only=True)
class _Reading:
    """What was read of a broker: last at ``read``, and with these counters since ``changed``.

    ``ahead_s`` is our clock less the broker's, by the newest page. When the ``first`` page was made
    is not known if it is repeated, and without a clock. ``served`` bundles had topics, and ``came``
    are those of them that had none before.
    """

    seen: Exposition
    read: Moment
    changed: Moment
    ahead_s: float
    first: bool
    owned: Collection[BundleId]
    served: set[BundleId]
    came: Collection[BundleId] = ()
    sample: BrokerSample | None = None


@dataclass(slots=True)
class Sampler:
    """Reads all brokers repeatedly; a window lies between two readings of a broker.

    ``hosts`` also reads the usage of their hosts; with None it is not read. While a broker repeats
    a page of metrics its last sample counts, and the next window ends with its next page. A bundle
    that came to a broker is partial for two windows, in which its clients connect and catch up.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    hosts: Hosts | None = None
    _former: dict[BrokerId, _Reading] = field(default_factory=dict)

    async def sample(
        self, cluster: PulsarCluster
    ) -> tuple[Mapping[BrokerId, BrokerSample], Mapping[BrokerId, str]]:
        parallel = asyncio.Semaphore(_PARALLEL)

        async def bounded(broker: BrokerId) -> BrokerSample | str:
            async with parallel:
                try:
                    return await self._sample(cluster, broker)
                except NotPulsar:
                    self._former.pop(broker, None)
                    raise

        answers, missing = await ask_each(cluster.brokers, bounded)
        for gone in self._former.keys() - set(cluster.brokers):
            del self._former[gone]
        samples = {name: one for name, one in answers.items() if isinstance(one, BrokerSample)}
        waiting = {name: one for name, one in answers.items() if isinstance(one, str)}
        return samples, {**missing, **waiting}

    async def _sample(self, cluster: PulsarCluster, broker: BrokerId) -> BrokerSample | str:
        """Return the sample of a window that ends now, or why there is none."""
        url, former = self.address(broker), self._former.get(broker)
        seen = await read_exposition(self.admin.lines(f"{url}/metrics/"))
        # A broker whose last bundle left counts none of its topics either.
        before = former.owned if former and seen.topics else ()
        owned = await read_owned(self.admin, url, cluster.name, broker, before)
        if former and former.seen.topics and not seen.topics and former.served.intersection(owned):
            count = len(former.seen.topics)
            raise NotPulsar(f"{url}/metrics/: counts no topic; expected about {count:,}, as before")
        buffers = cluster.settings.get(broker, {}).get(BUFFERS) == "true"
        now = seen.moment
        reading = _Reading(
            seen=seen,
            read=now,
            changed=now,
            ahead_s=math.inf if now.clock_s is None else now.at_s - now.clock_s,
            first=former is None,
            owned=owned,
            served=set(owned),
        )
        if former is None:
            self._former[broker] = reading
            return "its second reading is not there yet"
        restarted = _restarted(former.seen, seen)
        still = not restarted and seen.topics == former.seen.topics and _has_counted(seen)
        if still and _repeats(former, seen, buffers=buffers):
            former.read, former.owned = now, owned
            if former.sample is None:
                return REPEATED
            bundles = {one: former.sample.bundles.get(one, _UNKNOWN) for one in owned}
            age_s = now.at_s - former.changed.at_s
            return replace(former.sample, bundles=bundles, restarted=False, repeated_s=age_s)
        self._former[broker] = reading
        undated = former.first and now.clock_s is None
        if undated and not still and (buffers or former.read != former.changed):
            return REPEATED
        if not restarted:
            reading.ahead_s = min(reading.ahead_s, former.ahead_s)
        began = former.read
        if still and not buffers and now.clock_s is None:
            reading.changed = former.changed
        elif began.at_s - former.changed.at_s <= LONGEST_REPEATED_S:
            began = former.changed
        sample = _sampled(former, reading, began, restarted=restarted)
        if self.hosts is not None:
            host = await self.hosts.measured(self.admin, url, cluster, seen)
            host = self.hosts.completed(broker, host, sample.cpu_cores, sample.window_s)
            sample = replace(sample, host=host)
        reading.sample = sample
        return sample


def _repeats(former: _Reading, seen: Exposition, *, buffers: bool) -> bool:
    """Return whether a page with the same counters is the same page, or old in part."""
    if seen.clock_s is not None and former.seen.clock_s is not None:
        return seen.clock_s == former.seen.clock_s
    if seen.at_s - former.changed.at_s > LONGEST_REPEATED_S:
        return False
    if buffers or seen.cpu_seconds == former.seen.cpu_seconds is not None:
        return seen.cpu_seconds == former.seen.cpu_seconds
    return former.sample is not None and former.sample.total.msgs_per_s > 0


def _sampled(
    former: _Reading, reading: _Reading, began: Moment, *, restarted: bool
) -> BrokerSample:
    before, seen = former.seen, reading.seen
    window_s = max(seen.moment.since(began), _LEAST_S)
    took_s = max(seen.moment.since(before.moment), _LEAST_S)
    if restarted:
        before = Exposition(totals=(0.0, 0.0))
        window_s = min(window_s, seen.clock_s or window_s)
    grew = None
    if before.totals is not None and seen.totals is not None:
        grew = seen.totals[0] - before.totals[0], seen.totals[1] - before.totals[1]
    window = between(before.topics, seen.topics, window_s, grew)
    counted, homeless = bundle_traffic(reading.owned, window)
    served = () if restarted else former.served
    reading.served = {one for one, traffic in counted.items() if traffic.topics}
    reading.came = {one for one in reading.served if counted[one].partial and one not in served}
    bundles = dict(counted)
    for one in reading.served.intersection((*reading.came, *former.came)):
        bundles[one] = replace(bundles[one], partial=True)
    cpu_cores = None
    if before.cpu_seconds is not None and seen.cpu_seconds is not None:
        cpu_cores = max(seen.cpu_seconds - before.cpu_seconds, 0.0) / took_s
    return BrokerSample(
        window_s=window_s,
        bundles=bundles,
        topics=window.rates,
        usages=seen.usages,
        cpu_cores=cpu_cores,
        homeless=replace(
            homeless, bytes_out_per_s=homeless.bytes_out_per_s + window.uncounted_bytes_per_s
        ),
        began_s=min(seen.at_s, reading.ahead_s + (seen.clock_s or 0.0)) - window_s,
        restarted=restarted,
    )


REPEATED: Final = f"it repeats its page of metrics ({BUFFERS}): its rates follow with the next one"


def _restarted(before: Exposition, now: Exposition) -> bool:
    if before.started_s is not None and now.started_s is not None:
        return now.started_s != before.started_s
    return (before.cpu_seconds or 0.0) > (now.cpu_seconds or math.inf)


def _has_counted(seen: Exposition) -> bool:
    return any(one.msgs_in or one.out for one in seen.topics.values())
