import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.sampling import BrokerSample
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.standing import EVEN
from loadmanager.core.load import BrokerUrls, LoadReport, ResourceUsage
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.policies import Policies
from loadmanager.core.scores import ResourceWeights

_PERCENT = 100.0


@dataclass(slots=True)
class SampledLoads:
    """Loads over one controller's term, with one sample of each bundle per window.

    With ``of_windows`` the usage of CPU is that of the broker's process in the window, where it is
    known, else what the broker's load manager measured. A broker above the mean by traffic that
    passes takes no bundle meanwhile. A report has the bundles gained and lost since the broker's
    last one. The start time of a broker is that of its first sample, or of the first after a
    restart. ``left`` are brokers with a report before the last window and none in it.
    """

    address: Callable[[BrokerId], str]
    weights: ResourceWeights = field(default_factory=ResourceWeights)
    of_windows: bool = False
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic
    taken: Mapping[BrokerId, LoadReport] = field(default_factory=dict)
    left: frozenset[BrokerId] = frozenset()
    at_ms: int = 0
    now_s: float = 0.0
    ticks: int = 0
    tracker: LoadTracker = field(init=False)
    _former: dict[BrokerId, LoadReport] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tracker = LoadTracker(weights=self.weights)

    def take(self, cluster: PulsarCluster, samples: Mapping[BrokerId, BrokerSample]) -> None:
        """Count a window; a broker without a sample counts as having left."""
        self.at_ms, self.now_s = self.wall_ms(), self.monotonic_s()
        self.left = self.tracker.brokers - samples.keys()
        for gone in self.left:
            self.tracker.forget(gone, self.now_s)
        for inactive in self._former.keys() - set(cluster.brokers):
            del self._former[inactive]
        full = _full_for_now(samples)
        self.taken = {
            broker: self._report(cluster, broker, sample, takes=broker not in full)
            for broker, sample in samples.items()
        }
        self._former.update(self.taken)
        for report in self.taken.values():
            self.tracker.report(report, self.now_s)
        self.tracker.sample()
        self.ticks += 1

    def _report(
        self, cluster: PulsarCluster, broker: BrokerId, sample: BrokerSample, *, takes: bool
    ) -> LoadReport:
        former = None if sample.restarted else self._former.get(broker)
        before = frozenset() if former is None else former.bundles.keys()
        return LoadReport(
            broker=broker,
            urls=BrokerUrls(http_url=self.address(broker)),
            sidecar_url="",
            started_at_ms=self.at_ms if former is None else former.started_at_ms,
            version=cluster.version,
            reported_at_ms=self.at_ms,
            # No broker may be given a bundle that it cannot serve; it gives as any other.
            persistent_topics=takes,
            **self._usages(sample),
            bundles={bundle: one.stats().rounded() for bundle, one in sample.bundles.items()},
            gains=frozenset(sample.bundles.keys() - before),
            losses=frozenset(before - sample.bundles.keys()),
        )

    def _usages(self, sample: BrokerSample) -> dict[str, Any]:
        usages = {} if sample.host is None else dict(sample.host.usages)
        if self.of_windows and sample.window_cpu is not None:
            usages["cpu"] = sample.window_cpu
        if usages or sample.cpu_cores is None:
            return usages
        return {"cpu": ResourceUsage(_PERCENT * sample.cpu_cores, 0.0)}

    def view(self, policies: Policies, due: Mapping[BundleId, BrokerId]) -> ClusterView:
        """Return the cluster; ``due`` are bundles that move to a broker whatever is decided."""
        return self.tracker.view(self.now_s, in_flight=due, policies=policies)


def _full_for_now(samples: Mapping[BrokerId, BrokerSample]) -> set[BrokerId]:
    """Return the brokers that are above the mean by their passing traffic alone."""
    full: set[BrokerId] = set()
    if not samples:
        return full
    for size in ("msgs_per_s", "bytes_per_s"):
        lasting = np.array([getattr(one.total, size) for one in samples.values()], dtype=float)
        whole = lasting + [getattr(one.passing, size) for one in samples.values()]
        above = (whole > EVEN * whole.mean()) & ~(lasting > EVEN * lasting.mean())
        full.update(broker for broker, one in zip(samples, above, strict=True) if one)
    return full
