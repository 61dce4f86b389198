from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

import numpy as np

from loadmanager.core.bundle_task import BundleTask, TaskKind, TaskState
from loadmanager.core.duty_moves import Duties
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.standing import QUIET
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Cause
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.playback import Decided, Playback
from loadmanager.core.shedding.contract import Shedder
from loadmanager.core.shedding.joint import JointShedder
from loadmanager.pulsar.answers import PulsarCluster
from loadmanager.pulsar.sampling import Hosts, SampledLoads, Samples

_SEED: Final = 16
_SLACK_S: Final = 1e-3
_PAUSES: Final = 20
_LONGEST_PAUSE_S: Final = 60.0
_MEAN_S: Final = 60.0


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
    decided: Decided | None = None
    _memory: RoundMemory = field(default_factory=RoundMemory)
    _choice: Decided | None = None
    _last: Decided | None = None
    _rounds: int = 0
    _last_end_s: float = float("-inf")
    _under_way: set[BundleId] = field(default_factory=set)
    _pauses_s: deque[float] = field(default_factory=lambda: deque(maxlen=_PAUSES))

    @property
    def by_rates(self) -> bool:
        """Whether it can decide without any usage of hosts."""
        return self.hosts is None or isinstance(self.planner.shedder, JointShedder)

    def take(
        self, cluster: PulsarCluster, samples: Samples, missing: Mapping[BrokerId, str]
    ) -> tuple[Samples, Mapping[BrokerId, str]]:
        """Count the samples of a window; return those to decide on, and why others are missing.

        Raises `LoadManagerError`: no broker reports all figures, now or soon.
        """
        unknown = {
            broker: one.host
            for broker, one in samples.items()
            if one.host is not None and one.host.unknown and not self.by_rates
        }
        why = "what it uses of its CPU is not known"
        whys = {broker: f"{why}: {one.unknown}" for broker, one in unknown.items()}
        never = len(unknown) == len(samples) and not any(one.pending for one in unknown.values())
        if samples and never and not self.loads.ticks:
            broker = next(iter(unknown))
            raise LoadManagerError(
                f"strategy {self.name} decides by brokers' usage and limit of CPU, and no broker "
                f"reports them (such as {broker}: {whys[broker]}); expected a strategy that needs "
                "none (joint, uniform), or --cores"
            )
        known = {broker: one for broker, one in samples.items() if broker not in unknown}
        self.decided = self._choice = None
        self.loads.take(cluster, known)
        return known, {**missing, **whys}

    def decide(
        self,
        cluster: PulsarCluster,
        samples: Samples,
        stays: Collection[BundleId],
        duties: Duties,
        *,
        eases: bool,
    ) -> Decided:
        """Return a round's decision; may be called more than once for the same samples."""
        every = [one for sample in samples.values() for one in sample.bundles.values()]
        busy = any(one.msgs_per_s > 0 for one in every)
        early = self._too_early(cluster, samples) if busy else "no traffic was counted"
        # Without moves the last decision is made again until the next is due.
        last = self._last if busy and early and not self.acts else None
        playback = Playback(
            replace(self.planner, shedder=self._on_windows(self.planner.shedder)),
            # Ties are broken alike however often a window is decided on.
            np.random.default_rng((_SEED, self._rounds - (last is not None))),
            self._memory if last is None else last.memory,
        )
        policies = replace(cluster.isolation, staying=frozenset(stays))
        rests = early if last is None else ""
        found = playback.round_with_duties(
            self.loads.view, policies, duties, rests=rests, eases=eases
        )
        self._choice = None if early else found
        return found

    def _on_windows(self, shedder: Shedder) -> Shedder:
        """Return a shedder for single windows, with the measured pauses in half seconds."""
        if not isinstance(shedder, JointShedder):
            return shedder
        pause_s = round(2 * median(self._pauses_s)) / 2 if self._pauses_s else 0.0
        pause_s = max(shedder.pause_s, min(pause_s, _LONGEST_PAUSE_S))
        return replace(shedder, pause_s=pause_s, mean_s=max(shedder.mean_s, _MEAN_S))

    def record_choice(self) -> None:
        self.decided = self._choice
        if self._choice is None:
            return
        self._rounds += 1
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

    def _too_early(self, cluster: PulsarCluster, samples: Samples) -> str:
        # By rates it waits only where CPU counts, and brokers' own measurements alone show it.
        if self.by_rates and not any(
            one.host is not None
            and one.window_cpu is None
            and (cpu := one.host.usages.get("cpu")) is not None
            and (cpu.fraction or 0.0) >= QUIET
            for one in samples.values()
        ):
            return ""
        shows_since_s = min((one.shows_since_s for one in samples.values()), default=0.0)
        if shows_since_s < self._last_end_s:
            return "the figures of hosts began before the last move ended"
        every_s = cluster.host_interval_s if self.hosts is not None else 0.0
        decided_s = float("-inf") if self._last is None else self._last.view.now_s
        left_s = decided_s + every_s - self.loads.now_s
        if left_s > _SLACK_S:
            return (
                f"brokers measure their hosts every {every_s:g} s; "
                f"the next decision is in {left_s:.0f} s"
            )
        return ""


def weighed(one: Decided) -> Mapping[BundleId, str]:
    """Return the benefit and cost of each move of the strategy, empty if it compares none."""
    weigher = one.planner.weigher(one.view, one.memory)
    return {
        move.bundle: weighing.describe_move(move.target)
        for move in one.plan.moves
        if weigher is not None
        and (weighing := weigher.weighing(move.source, move.bundle)) is not None
    }
