"""Memory of strategies between rounds, as one immutable value.

Strategies have no state: each round takes the memory and returns the next one. So a new leader
continues from the stored memory, and a test may start from any state.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import exponential_average
from loadmanager.core.bounds import TIME_MS, TIME_S, TOTAL
from loadmanager.core.cluster import ClusterView
from loadmanager.core.fields import At, Form
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.state import JointState
from loadmanager.core.scores import FloatArray


def _nothing() -> Mapping[Any, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The memory of one strategy; each uses the fields it needs.

    ``usage`` holds the running usage of brokers, a fraction. ``high_hits`` and ``low_hits``
    count rounds in which a broker exceeded a threshold, ``rounds_over`` those in which the whole
    cluster did. ``planned`` holds the targets of bundles that were shed with a target. ``turn``
    and ``turn_order`` belong to the round-robin placement. ``shed_at_s`` is when a broker last
    took part in a move. ``joint`` is the learned state of the joint strategy, which is stored
    separately (`core.joint.document`).
    """

    usage: Mapping[BrokerId, float] = field(default_factory=_nothing)
    high_hits: Mapping[BrokerId, int] = field(default_factory=_nothing)
    low_hits: Mapping[BrokerId, int] = field(default_factory=_nothing)
    rounds_over: int = 0
    planned: Mapping[BundleId, BrokerId] = field(default_factory=_nothing)
    turn: int = 0
    turn_order: tuple[BrokerId, ...] = ()
    shed_at_s: Mapping[BrokerId, float] = field(default_factory=_nothing)
    joint: JointState | None = field(default=None, compare=False, repr=False)

    def only(self, brokers: Collection[BrokerId]) -> "Memory":
        """Return the memory without the running usage of brokers that left the cluster."""
        if all(broker in brokers for broker in self.usage):
            return self
        kept = {broker: value for broker, value in self.usage.items() if broker in brokers}
        return replace(self, usage=kept)

    def without(self, brokers: Collection[BrokerId]) -> "Memory":
        """Return the memory without any entries of the given brokers, which have restarted."""
        if not brokers:
            return self
        return replace(
            self,
            usage=_dropped(self.usage, brokers),
            high_hits=_dropped(self.high_hits, brokers),
            low_hits=_dropped(self.low_hits, brokers),
            shed_at_s=_dropped(self.shed_at_s, brokers),
        )

    def running_usage(
        self, names: Sequence[BrokerId], scores: FloatArray, kept_fraction: float
    ) -> FloatArray:
        """Return the running usage of brokers after ``scores``, which begin it if it is new."""
        # A broker without a past gives None, which numpy reads as NaN.
        past = np.array(list(map(self.usage.get, names)), dtype=np.float64)
        return exponential_average(past, scores, kept_fraction)

    def with_usage(self, names: Sequence[BrokerId], usage: FloatArray) -> "Memory":
        return replace(self, usage={**self.usage, **dict(zip(names, usage.tolist(), strict=True))})


MEMORY: Final = Form(Memory, usage=At(bound=TOTAL), shed_at_s=At(bound=TIME_S), joint=None)


def _dropped(mapping: Mapping[BrokerId, Any], brokers: Collection[BrokerId]) -> dict[Any, Any]:
    return {broker: value for broker, value in mapping.items() if broker not in brokers}


HOUR_S: Final = 3600.0
_CLOCK_SLACK_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundMemory:
    """The strategies' memories, the last moves of bundles, and the start times of brokers.

    ``moved_at_s`` is on the clock of the views' ``now_s``; another leader can use it only if
    both share that clock.
    """

    shedder: Memory = field(default_factory=Memory)
    placement: Memory = field(default_factory=Memory)
    moved_at_s: Mapping[BundleId, float] = field(default_factory=lambda: MappingProxyType({}))
    started_at_ms: Mapping[BrokerId, int] = field(default_factory=lambda: MappingProxyType({}))
    brokers_changed_s: float = float("-inf")

    def following(self, view: ClusterView, cool_down_s: float) -> "RoundMemory":
        """Return the memory for a round on ``view``.

        It drops moves too old for any rule (and those in the future after a clock was set back),
        brokers that left, and the entries of restarted brokers: the usage before a restart does
        not predict the usage after it.
        """
        brokers = view.brokers
        started = dict(zip(brokers.names, brokers.started_at_ms, strict=True))
        restarted = {
            broker
            for broker, began in started.items()
            if self.started_at_ms.get(broker, began) != began
        }
        changed = bool(self.started_at_ms) and self.started_at_ms != started
        keep_s = max(cool_down_s, HOUR_S)
        moved = {
            bundle: at_s
            for bundle, at_s in self.moved_at_s.items()
            if -_CLOCK_SLACK_S <= view.now_s - at_s <= keep_s
        }
        return RoundMemory(
            shedder=self.shedder.only(started.keys()).without(restarted),
            placement=self.placement.only(started.keys()).without(restarted),
            moved_at_s=moved,
            started_at_ms=started,
            brokers_changed_s=view.now_s if changed else self.brokers_changed_s,
        )

    def with_changes(self, former: "RoundMemory", now: "RoundMemory") -> "RoundMemory":
        """Return the memory after a round, merged with changes made since it began.

        The round began with ``former``, which has become ``now``: orders and placements made
        while the round was computed are kept.
        """
        if now is former:
            return self
        moved = {b: at_s for b, at_s in now.moved_at_s.items() if former.moved_at_s.get(b) != at_s}
        return replace(
            self,
            shedder=self.shedder if now.shedder is former.shedder else now.shedder,
            placement=self.placement if now.placement is former.placement else now.placement,
            moved_at_s={**self.moved_at_s, **moved},
        )

    def resting(self, now_s: float, cool_down_s: float) -> frozenset[BundleId]:
        return frozenset(
            one for one in self.moved_at_s if self.rests_s(one, now_s, cool_down_s) > 0
        )

    def rests_s(self, bundle: BundleId, now_s: float, cool_down_s: float) -> float:
        """Return how long a bundle is not shed again that moved since brokers came or went."""
        moved_at_s = self.moved_at_s.get(bundle, float("-inf"))
        return moved_at_s + cool_down_s - now_s if moved_at_s >= self.brokers_changed_s else 0.0

    def moves_within_hour(self, now_s: float) -> int:
        return sum(now_s - at_s < HOUR_S for at_s in self.moved_at_s.values())


ROUND_MEMORY: Final = Form(
    RoundMemory,
    shedder=MEMORY.at(),
    placement=MEMORY.at(),
    moved_at_s=At(bound=TIME_S),
    started_at_ms=At(bound=TIME_MS),
    brokers_changed_s=At(bound=TIME_S, omitted=float("-inf")),
)


def shifted(memory: RoundMemory, by_s: float) -> RoundMemory:
    shed_at_s = {broker: at_s + by_s for broker, at_s in memory.shedder.shed_at_s.items()}
    moved_at_s = {bundle: at_s + by_s for bundle, at_s in memory.moved_at_s.items()}
    return replace(
        memory,
        moved_at_s=moved_at_s,
        shedder=replace(memory.shedder, shed_at_s=shed_at_s),
        brokers_changed_s=memory.brokers_changed_s + by_s,
    )
