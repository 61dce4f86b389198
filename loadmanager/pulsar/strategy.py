from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from loadmanager.core.bundle_task import BundleTask, TaskKind, TaskState
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.cluster import ClusterView
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.standing import QUIET
from loadmanager.core.max_over_mean import Floats, Places, RatePlan, rate_plan
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Cause, Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.shedding.contract import Shedder
from loadmanager.core.shedding.joint import JointShedder
from loadmanager.pulsar.answers import PulsarCluster
from loadmanager.pulsar.sampling import BrokerSample, Hosts, SampledLoads

Samples = Mapping[BrokerId, BrokerSample]
Missing = Mapping[BrokerId, str]
Rows = tuple[tuple[BundleId, BrokerId, BundleTraffic], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyInput:
    """Input of a strategy: each bundle with its broker and traffic.

    ``stays`` are the bundles that may not move, ``most_moves`` is the most moves of one round.
    """

    cluster: PulsarCluster
    samples: Samples
    rows: Rows
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

    ``weighed`` are the benefit and
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


_SEED: Final = 16
_SLACK_S: Final = 1e-3
_PAUSES: Final = 20
_LONGEST_PAUSE_S: Final = 60.0


class StrategyInputMissing(LoadManagerError):
    """No broker reports the figures that the strategy needs; the message says which and why."""


@dataclass(slots=True)
class Strategy:
    """Chooses the moves of each round as the leader of sidecars does.

    ``loads`` has one sample of each bundle per window, and ``hosts`` reads host usage, None if the
    planner needs none. The joint strategy decides in each window, by rates until brokers' CPU
    says more, and by what the broker's process takes of its CPU in the same window. Where that is
    known only from what brokers measure once per interval, and for strategies that need it, a
    decision is made once per interval, and not before the measured period begins after the end of
    the last move. If it ``acts``, moves are made; otherwise the last ones are shown until it
    decides again. ``decided`` is the decision in this window, None without one.
    """

    name: str = "joint"
    planner: Planner = field(
        default_factory=lambda: Planner(
            shedder=JointShedder(), settings=PlannerSettings(settle_s=0.0)
        )
    )
    loads: SampledLoads = field(default_factory=lambda: SampledLoads("http://{}".format))
    hosts: Hosts | None = None
    acts: bool = True
    decided: DecidedRound | None = None
    _memory: RoundMemory = field(default_factory=RoundMemory)
    _choice: DecidedRound | None = None
    _last: DecidedRound | None = None
    _rounds: int = 0
    _decided_s: float = float("-inf")
    _last_end_s: float = float("-inf")
    _under_way: set[BundleId] = field(default_factory=set)
    _pauses_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PAUSES))

    @property
    def by_rates(self) -> bool:
        """Whether it can decide without any usage of hosts."""
        return self.hosts is None or isinstance(self.planner.shedder, JointShedder)

    def take(
        self, cluster: PulsarCluster, samples: Samples, missing: Missing
    ) -> tuple[Samples, Missing]:
        """Count the samples of a window; return those to decide on, and why others are missing.

        Raises `StrategyInputMissing`: no broker reports all figures, now or soon.
        """
        unknown = {
            broker: f"what it uses of its CPU is not known: {one.host.unknown}"
            for broker, one in samples.items()
            if one.host is not None and one.host.unknown and not self.by_rates
        }
        never = [broker for broker in unknown if not _pending(samples[broker])]
        if samples and len(never) == len(samples) and not self.loads.ticks:
            broker, why = next(iter(unknown.items()))
            raise StrategyInputMissing(
                f"strategy {self.name} decides by brokers' usage and limit of CPU, and no broker "
                f"reports them (such as {broker}: {why}); expected a strategy that needs none "
                "(joint, uniform), or --cores"
            )
        known = {broker: one for broker, one in samples.items() if broker not in unknown}
        self.decided = self._choice = None
        self.loads.take(cluster, known)
        return known, {**missing, **unknown}

    def choose(self, given: StrategyInput) -> ChosenMoves:
        """Return the moves; may be called more than once for the same samples."""
        early = self._too_early(given)
        self._choice = None if early else self._round(given)
        shown = self._choice or (None if self.acts else self._last)
        if shown is not None:
            return _chosen(given, shown.plan, _weighed(shown))
        resting = Refusal("", Reason.COOLING_DOWN, early)
        return _chosen(given, Plan(moves=(), refusals=(resting,), memory=self._memory), {})

    def _round(self, given: StrategyInput) -> DecidedRound:
        policies = replace(given.cluster.isolation, staying=frozenset(given.stays))
        settings = self.planner.settings
        moves = min(settings.moves_per_round, given.most_moves)
        planner = replace(
            self.planner,
            settings=replace(settings, moves_per_round=moves),
            shedder=self._priced(self.planner.shedder),
        )
        # Moves that policies require, which precede those of the strategy.
        listed = self.loads.taken
        due = {one: to for one, to, _ in given.rows if one not in listed[to].bundles}
        view = self.loads.view(policies, due)
        # Ties are broken alike however often a window is decided on.
        rng = np.random.default_rng((_SEED, self._rounds))
        plan = planner.round(view, self._memory, rng, draining=False)
        return DecidedRound(planner=planner, view=view, memory=self._memory, plan=plan)

    def _priced(self, shedder: Shedder) -> Shedder:
        """Return a shedder that prices moves by their measured pauses, in half seconds."""
        if not self._pauses_s or not isinstance(shedder, JointShedder):
            return shedder
        pause_s = round(2 * median(self._pauses_s)) / 2
        return replace(shedder, pause_s=max(shedder.pause_s, min(pause_s, _LONGEST_PAUSE_S)))

    def record_choice(self) -> None:
        self.decided = self._choice
        if self._choice is None:
            return
        self._rounds += 1
        self._decided_s = self.loads.now_s
        self._last = self._choice
        self._memory = self._choice.plan.memory_before_orders(self._memory)

    def task(self, task: BundleTask) -> None:
        if task.cause is Cause.COUNT:
            return  # Without traffic it changes no host's figures.
        if task.pause is not None and task.pause_s is not None:
            self._pauses_s.append(task.pause_s)
        if task.state is TaskState.ORDERED:
            self._under_way.add(task.bundle)
            if self._last is not None and task.kind is TaskKind.MOVE:
                self._memory = self._last.plan.memory_after_orders(self._memory, {task.bundle})
        elif task.state.ended and task.bundle in self._under_way:
            self._under_way.discard(task.bundle)
            self._last_end_s = self.loads.monotonic_s()

    def _too_early(self, given: StrategyInput) -> str:
        if self.by_rates and not self._waits(given.samples):
            return ""
        shows_since_s = min((one.shows_since_s for one in given.samples.values()), default=0.0)
        if shows_since_s < self._last_end_s:
            return "the figures of hosts began before the last move ended"
        every_s = given.cluster.host_interval_s if self.hosts is not None else 0.0
        left_s = self._decided_s + every_s - self.loads.now_s
        if left_s > _SLACK_S:
            return (
                f"brokers measure their hosts every {every_s:g} s; "
                f"the next decision is in {left_s:.0f} s"
            )
        return ""

    def _waits(self, samples: Samples) -> bool:
        """Return whether CPU counts, and is known only from brokers' own measurements."""
        return any(
            one.host is not None
            and one.window_cpu is None
            and (cpu := one.host.usages.get("cpu")) is not None
            and (cpu.fraction or 0.0) >= QUIET
            for one in samples.values()
        )


def _pending(sample: BrokerSample) -> bool:
    return sample.host is not None and sample.host.pending


def _weighed(choice: DecidedRound) -> Mapping[BundleId, str]:
    weigher = choice.planner.weigher(choice.view, choice.memory)
    if weigher is None:
        return {}
    described = {}
    for move in choice.plan.moves:
        weighing = weigher.weighing(move.source, move.bundle)
        described[move.bundle] = "" if weighing is None else weighing.describe_move(move.target)
    return described


def _chosen(given: StrategyInput, plan: Plan, weighed: Mapping[BundleId, str]) -> ChosenMoves:
    rows = {(bundle, broker): row for row, (bundle, broker, _) in enumerate(given.rows)}
    place = {broker: number for number, broker in enumerate(given.samples)}
    moves = [
        (rows[move.bundle, move.source], place[move.target])
        for move in plan.moves
        if move.source is not None and (move.bundle, move.source) in rows and move.target in place
    ]
    return ChosenMoves(
        plan=rate_plan(given.rates, given.owner, len(place), moves),
        causes={move.bundle: move.cause for move in plan.moves},
        weighed=weighed,
        refusals=plan.refusals,
    )
