"""What decides on one look at a cluster, and the strategy that looks at counters alone."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.host_figures import Hosts
from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.tallied import Tallied
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.cluster import ClusterView
from loadmanager.core.even_rates import GREEDY_RATE, Floats, Places, RatePlan, plan_even_rates
from loadmanager.core.ids import BrokerId, BundleId, namespace_of
from loadmanager.core.plan import Cause, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.policies import IsolationPolicy, open_to
from loadmanager.core.round_memory import RoundMemory

Samples = Mapping[BrokerId, BrokerSample]
Missing = Mapping[BrokerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What a strategy decides on: each bundle with its broker and traffic.

    ``stays`` are the bundles that may not move, ``most_moves`` how many others may at once.
    """

    cluster: PulsarCluster
    samples: Samples
    rows: tuple[tuple[BundleId, BrokerId, BundleTraffic], ...]
    stays: Collection[BundleId]
    most_moves: int

    @property
    def brokers(self) -> tuple[BrokerId, ...]:
        """The brokers, in the order in which a plan numbers them."""
        return tuple(self.samples)

    @property
    def rates(self) -> Floats:
        """Messages and bytes per second of each bundle, in and out."""
        return np.array([(one.msgs_per_s, one.bytes_per_s) for *_, one in self.rows], dtype=float)

    @property
    def owner(self) -> Places:
        """The number of each bundle's broker."""
        place = {broker: number for number, broker in enumerate(self.samples)}
        return np.array([place[broker] for _, broker, _ in self.rows], dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The moves of one look with the cause of each, and why everything else was left alone.

    ``weighed`` is what each move was weighed by, "" for strategies that do not say so.
    """

    plan: RatePlan
    causes: tuple[Cause, ...]
    weighed: tuple[str, ...]
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One round of the planner: with what, on which view, with which memory, and its plan."""

    planner: Planner
    view: ClusterView
    memory: RoundMemory
    plan: Plan


class Strategy(Protocol):
    """Chooses moves, look after look."""

    @property
    def name(self) -> str:
        """What it is called, as an option has it."""

    @property
    def hosts(self) -> Hosts | None:
        """How hosts are read for it, None if it does not look at them."""

    @property
    def tallied(self) -> Tallied | None:
        """Its state of the cluster, None if it has none."""

    @property
    def decided(self) -> Decided | None:
        """What the planner decided in this window, None where it did not decide."""

    def take(
        self, cluster: PulsarCluster, samples: Samples, missing: Missing
    ) -> tuple[Samples, Missing]:
        """Count the samples of a window; return those to decide on, and why others are missing.

        Raises:
            LoadManagerError: this cluster does not report what the strategy needs.
        """

    def choose(self, look: Look) -> Chosen:
        """Return what would be moved now; the same samples may be asked about again."""

    def settle(self) -> None:
        """Let the last choice be the one of this window."""

    def task(self, task: BundleTask) -> None:
        """Take note of a task in its new state."""


@dataclass(frozen=True, slots=True)
class GreedyRate:
    """Evens out message and byte rates; needs no figures of hosts and remembers nothing."""

    name: ClassVar[str] = GREEDY_RATE
    hosts: ClassVar[Hosts | None] = None
    tallied: ClassVar[Tallied | None] = None
    decided: ClassVar[Decided | None] = None

    def take(
        self, cluster: PulsarCluster, samples: Samples, missing: Missing
    ) -> tuple[Samples, Missing]:
        """Return the samples as they are."""
        del cluster
        return samples, missing

    def choose(self, look: Look) -> Chosen:
        """Return the moves that even out rates most."""
        brokers = look.brokers
        kinds: dict[IsolationPolicy | None, int] = {}
        isolation = look.cluster.isolation
        kind = [
            kinds.setdefault(isolation.governing(namespace_of(one)), len(kinds))
            for one, *_ in look.rows
        ]
        plan = plan_even_rates(
            look.rates,
            look.owner,
            len(brokers),
            movable=np.array([bundle not in look.stays for bundle, *_ in look.rows], dtype=bool),
            kind=np.array(kind, dtype=np.intp),
            gives=np.ones(len(brokers), dtype=bool),
            takes=np.array([open_to(isolation, policy, brokers) for policy in kinds]),
            most_moves=look.most_moves,
        )
        count = len(plan.moves)
        return Chosen(plan=plan, causes=(Cause.IMBALANCE,) * count, weighed=("",) * count)

    def settle(self) -> None:
        """Remember nothing."""

    def task(self, task: BundleTask) -> None:
        """Remember nothing."""
