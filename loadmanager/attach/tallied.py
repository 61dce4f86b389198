"""What attach knows of a cluster over time, in the form that the planner and history share."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.reports import Reports
from loadmanager.attach.sampling import BrokerSample
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import LoadReport
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.policies import Policies
from loadmanager.core.scores import ResourceWeights


@dataclass(slots=True)
class Tallied:
    """The tally of one controller's term, with one sample of each bundle a window.

    Attributes:
        reports: makes load reports of samples.
        weights: of brokers' averages.
        taken: the reports of the last window.
        left: brokers that had a report before it and have none in it.
        at_ms: when the window was taken, on the wall clock; ``now_s`` on the monotonic one.
        ticks: windows so far.
    """

    reports: Reports
    weights: ResourceWeights = field(default_factory=ResourceWeights)
    wall_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    monotonic_s: Callable[[], float] = time.monotonic
    taken: Mapping[BrokerId, LoadReport] = field(default_factory=dict)
    left: frozenset[BrokerId] = frozenset()
    at_ms: int = 0
    now_s: float = 0.0
    ticks: int = 0
    tracker: LoadTracker = field(init=False)

    def __post_init__(self) -> None:
        """Begin without any sample."""
        self.tracker = LoadTracker(weights=self.weights)

    def take(self, cluster: PulsarCluster, samples: Mapping[BrokerId, BrokerSample]) -> None:
        """Count a window; a broker without a sample is as one that left."""
        self.at_ms, self.now_s = self.wall_ms(), self.monotonic_s()
        self.left = self.tracker.brokers - samples.keys()
        for gone in self.left:
            self.tracker.forget(gone, self.now_s)
        self.taken = self.reports.of(cluster, samples, self.at_ms)
        for report in self.taken.values():
            self.tracker.report(report, self.now_s)
        self.tracker.sample()
        self.ticks += 1

    def view(self, policies: Policies) -> ClusterView:
        """Return the cluster as of the last window."""
        return self.tracker.view(self.now_s, policies=policies)
