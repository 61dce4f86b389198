from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from loadmanager.core.bounds import TIME_MS, TIME_S
from loadmanager.core.cluster import ClusterView
from loadmanager.core.fields import At, Form
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.memory import MEMORY, Memory

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
            bundle for bundle, at_s in self.moved_at_s.items() if now_s - at_s < cool_down_s
        )

    def moves_within_hour(self, now_s: float) -> int:
        return sum(now_s - at_s < HOUR_S for at_s in self.moved_at_s.values())


ROUND_MEMORY: Final = Form(
    RoundMemory,
    shedder=MEMORY.at(),
    placement=MEMORY.at(),
    moved_at_s=At(bound=TIME_S),
    started_at_ms=At(bound=TIME_MS),
)


def shifted(memory: RoundMemory, by_s: float) -> RoundMemory:
    shed_at_s = {broker: at_s + by_s for broker, at_s in memory.shedder.shed_at_s.items()}
    moved_at_s = {bundle: at_s + by_s for bundle, at_s in memory.moved_at_s.items()}
    return replace(
        memory,
        moved_at_s=moved_at_s,
        shedder=replace(memory.shedder, shed_at_s=shed_at_s),
    )
