from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from loadmanager.attach.discovery import PulsarCluster
from loadmanager.attach.host_figures import Hosts
from loadmanager.attach.sampled_loads import SampledLoads
from loadmanager.attach.sampling import BrokerSample
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.cluster import ClusterView
from loadmanager.core.even_rates import GREEDY_RATE, Floats, Places, RatePlan, plan_even_rates
from loadmanager.core.ids import BrokerId, BundleId, namespace_of
from loadmanager.core.plan import Cause, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.policies import IsolationPolicy, Policies, open_to
from loadmanager.core.round_memory import RoundMemory

Samples = Mapping[BrokerId, BrokerSample]
Missing = Mapping[BrokerId, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInput:
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
        return tuple(self.samples)

    @property
    def rates(self) -> Floats:
        return np.array([(one.msgs_per_s, one.bytes_per_s) for *_, one in self.rows], dtype=float)

    @property
    def owner(self) -> Places:
        place = {broker: number for number, broker in enumerate(self.samples)}
        return np.array([place[broker] for _, broker, _ in self.rows], dtype=np.intp)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenMoves:
    """The moves that a strategy chose, and why it leaves other bundles and brokers alone.

    A bundle without an entry in ``causes`` moves for `IMBALANCE`. ``weighed`` are the benefit and
    cost of each move, empty if none are compared.
    """

    plan: RatePlan
    causes: Mapping[BundleId, Cause] = field(default_factory=dict)
    weighed: Mapping[BundleId, str] = field(default_factory=dict)
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecidedRound:
    planner: Planner
    view: ClusterView
    memory: RoundMemory
    plan: Plan


class Strategy(ABC):
    """Chooses the moves of each round.

    ``hosts`` reads host usage, ``loads`` keeps the state of the cluster over time; None if not
    needed. ``decided`` is the planner's decision in this window, None without one.
    """

    name: str
    hosts: Hosts | None = None
    loads: SampledLoads | None = None
    decided: DecidedRound | None = None

    def take(
        self,
        cluster: PulsarCluster,  # noqa: ARG002 - for strategies that keep a state
        samples: Samples,
        missing: Missing,
    ) -> tuple[Samples, Missing]:
        """Count the samples of a window; return those to decide on, and why others are missing.

        Raises `LoadManagerError`: the cluster does not report the figures that the strategy needs.
        """
        return samples, missing

    @abstractmethod
    def choose(self, given: StrategyInput) -> ChosenMoves:
        """Return the moves; may be called more than once for the same samples."""

    def record_choice(self) -> None:
        return

    def task(self, task: BundleTask) -> None:  # noqa: B027 - most strategies keep no state
        ...


class GreedyRate(Strategy):
    """Evens out message and byte rates; needs no host usage and keeps no state."""

    name = GREEDY_RATE

    def choose(self, given: StrategyInput) -> ChosenMoves:
        plan = even_out(
            [bundle for bundle, *_ in given.rows],
            given.rates,
            given.owner,
            given.brokers,
            stays=given.stays,
            policies=given.cluster.isolation,
            most_moves=given.most_moves,
        )
        return ChosenMoves(plan=plan)


def even_out(
    bundles: Sequence[BundleId],
    rates: Floats,
    owner: Places,
    brokers: tuple[BrokerId, ...],
    *,
    stays: Collection[BundleId],
    policies: Policies,
    most_moves: int,
) -> RatePlan:
    """Return the moves that even out rates, within the isolation policies.

    ``rates`` are (K, R) of the K bundles, ``owner`` (K,) the index of each one's broker.
    """
    kinds: dict[IsolationPolicy | None, int] = {None: 0}
    kind = [kinds.setdefault(policies.governing(namespace_of(one)), len(kinds)) for one in bundles]
    return plan_even_rates(
        rates,
        owner,
        len(brokers),
        movable=np.array([bundle not in stays for bundle in bundles], dtype=bool),
        kind=np.array(kind, dtype=np.intp),
        gives=np.ones(len(brokers), dtype=bool),
        takes=np.array([open_to(policies, policy, brokers) for policy in kinds]),
        most_moves=most_moves,
    )
