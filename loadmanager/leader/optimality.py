"""Computes the distance of the cluster from the best possible after each round.

It also runs the shadow strategies.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from loadmanager.common.context import Context
from loadmanager.core.balance_course import BalancePoint
from loadmanager.core.cluster import ClusterView
from loadmanager.core.optimality import Divided, Optimality
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.shadow import Seen
from loadmanager.leader.decisions import Decider
from loadmanager.leader.history_recorder import HistoryRecorder
from loadmanager.leader.shadows import Shadows
from loadmanager.ports.leading import Assessment

_SHARE_OF_TIME: Final = 0.05
"""Maximum fraction of a leader's time for this; rounds that follow too soon are skipped."""

_MOST_KEPT: Final = 720
"""Number of rounds kept: one hour at one round every five seconds."""


@dataclass(slots=True)
class OptimalityWatch:
    """Computes the optimality after the orders of a round are written, so that it delays no move.

    The results are exported as metrics, recorded in history and kept: ``last`` is that of this
    term's last round, ``course`` those of the last hour, which the next leader inherits.
    """

    context: Context
    decider: Decider
    recorder: HistoryRecorder
    shadows: Shadows
    last: Assessment | None = None
    course: deque[BalancePoint] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    _round: tuple[ClusterView, Plan] | None = None
    _not_before_s: float = float("-inf")

    def inherit(self, course: Iterable[BalancePoint]) -> None:
        self.course.extend(course)

    def decided(self, view: ClusterView, plan: Plan) -> None:
        """Keep the view and the plan of a round until the round is over."""
        self._round = (view, plan)

    async def round_over(self) -> None:
        """Compute the optimality of the round, unless it is too soon."""
        done, self._round = self._round, None
        began_s = self.context.clock.monotonic_s()
        if done is None or began_s < self._not_before_s:
            return
        seen = await self._seen(*done)
        self._show(None if seen is None else seen.optimality)
        if seen is not None:
            await self.shadows.round_over(seen)
        ended_s = self.context.clock.monotonic_s()
        self._not_before_s = ended_s + (ended_s - began_s) / _SHARE_OF_TIME

    async def _seen(self, view: ClusterView, plan: Plan) -> Seen | None:
        planner, memory = self.decider.planner, self.decider.memory
        try:
            compute = self.context.computing.compute
            found, parts = await compute(_assessed, planner, view, memory)
        except Exception as error:  # noqa: BLE001 - a failed assessment does not fail the round
            self.context.unexpected.caught("round", error)
            return None
        if found is None or parts is None:
            return None
        return Seen(view=view, divided=parts, optimality=found, moves=plan.moves)

    def _show(self, found: Optimality | None) -> None:
        self.context.metrics.optimality.found(found)
        past = self.decider.decision_log
        self.last = None
        if found is not None:
            self.last = Assessment(found, round=past.rounds, at_ms=past.last_round_at_ms)
            self.course.append(
                BalancePoint(
                    at_ms=self.last.at_ms,
                    gap=found.gap_within_policies,
                    largest=found.largest,
                    bound=found.bound_within_policies,
                )
            )
            self.recorder.assessed(found)

    def end(self) -> None:
        self.shadows.end()
        self.context.metrics.optimality.found(None)


def _assessed(
    planner: Planner, view: ClusterView, memory: RoundMemory
) -> tuple[Optimality | None, Divided | None]:
    return planner.optimality(view, memory), planner.divided(view, memory)
