"""The interface of strategies for ``attach``, and the strategy that needs only counters."""

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
    """Input of a strategy: each bundle with its broker and traffic.

    ``stays`` are the bundles that may not move, ``most_moves`` is the most moves of one round.
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
    """The moves that a strategy chose, each with its cause, and the refusals.

    ``weighed`` describes benefit and cost of each move, "" if the strategy compares none.
    """

    plan: RatePlan
    causes: tuple[Cause, ...]
    weighed: tuple[str, ...]
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """One round: the planner, its view and its memory before the round, and the plan."""

    planner: Planner
    view: ClusterView
    memory: RoundMemory
    plan: Plan


class Strategy(Protocol):
    """Chooses the moves of each round."""

    @property
    def name(self) -> str:
        """Its name, as in the option of the command."""

    @property
    def hosts(self) -> Hosts | None:
        """Reads host usage for it, None if it needs none."""

    @property
    def tallied(self) -> Tallied | None:
        """Its state of the cluster, None if it has none."""

    @property
    def decided(self) -> Decided | None:
        """The planner's decision in this window, None without one."""

    def take(
        self, cluster: PulsarCluster, samples: Samples, missing: Missing
    ) -> tuple[Samples, Missing]:
        """Count the samples of a window; return those to decide on, and why others are missing.

        Raises:
            LoadManagerError: the cluster does not report the figures that the strategy needs.
        """

    def choose(self, look: Look) -> Chosen:
        """Return the moves; may be called more than once for the same samples."""

    def settle(self) -> None:
        """Make the last choice the decision of this window."""

    def task(self, task: BundleTask) -> None:
        """Record a task in its new state."""


@dataclass(frozen=True, slots=True)
class GreedyRate:
    """Evens out message and byte rates; needs no host usage and keeps no state."""

    name: ClassVar[str] = GREEDY_RATE
    hosts: ClassVar[Hosts | None] = None
    tallied: ClassVar[Tallied | None] = None
    decided: ClassVar[Decided | None] = None

    def take(
        self, cluster: PulsarCluster, samples: Samples, missing: Missing
    ) -> tuple[Samples, Missing]:
        """Return the samples unchanged."""
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
        """Do nothing: there is no state."""

    def task(self, task: BundleTask) -> None:
        """Do nothing: there is no state."""
