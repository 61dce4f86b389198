"""What one leader decides by: the planner, and what it remembers from decision to decision."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.app.chronicle import Chronicle
from loadmanager.app.costing import Costing
from loadmanager.app.recollection import Recollection
from loadmanager.app.steering import Steering
from loadmanager.app.viewing import Viewing
from loadmanager.core.balancing import steered
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.round_memory import RoundMemory

_MUSTS: Final = frozenset(
    {Reason.DRAINING, Reason.REPORT_STALE, Reason.DOMAIN_UNSUPPORTED, Reason.ISOLATED}
)
_NOBODY: Mapping[BundleId, BrokerId] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Choices:
    """The next owner of each bundle that has one, and why the others have none."""

    placed: Mapping[BundleId, BrokerId]
    refusals: Mapping[BundleId, tuple[Refusal, ...]]


class Deciding:
    """The planner of one term, on the view and with the memory of that term."""

    def __init__(
        self,
        costing: Costing,
        viewing: Viewing,
        recollection: Recollection,
        steering: Steering,
        rng: np.random.Generator,
        *,
        chronicle: Chronicle,
    ) -> None:
        self._costing = costing
        self.steering = steering
        self.recollection = recollection
        self.memory = RoundMemory()
        self._viewing = viewing
        self._rng = rng
        self._chronicle = chronicle
        self._former = self.memory
        self._unsure: Plan | None = None

    @property
    def planner(self) -> Planner:
        """The planner as it is configured now, with the costs that are published."""
        return self._costing.planner

    @property
    def steered(self) -> Planner:
        """The planner as far as it may go by itself now."""
        return steered(self.planner, self.steering.balancing.mode)

    def round(self, view: ClusterView, *, session_doubtful: bool) -> Plan:
        """Return what one round would do, and remember it, until `undo` says otherwise."""
        self._former = self.memory
        planner = self.steered
        plan = planner.round(
            view, self.memory, self._rng, session_doubtful=session_doubtful, draining=False
        )
        self._chronicle.decided(
            view,
            self.memory,
            plan,
            planner=planner,
            steering=self.steering.balancing.mode.value,
            doubtful=session_doubtful,
        )
        self.memory = plan.memory
        self.recollection.round_done(plan, view.brokers.names)
        return plan

    def undo(self, plan: Plan) -> None:
        """Forget the moves of the last round: their orders were not written, or not surely.

        What a bundle that did not move is resting for would only hold back the next
        round, which decides anew.
        """
        moved_at_s = dict(self.memory.moved_at_s)
        for move in plan.moves:
            del moved_at_s[move.bundle]
            if move.bundle in self._former.moved_at_s:
                moved_at_s[move.bundle] = self._former.moved_at_s[move.bundle]
        shedder = self._former.shedder
        self.memory = replace(self.memory, shedder=shedder, moved_at_s=moved_at_s)
        self.recollection.not_ordered(plan.moves)
        self._unsure = plan

    def redo(self, assigned: Mapping[BundleId, BrokerId]) -> None:
        """Remember what was ordered after all: the orders that stand show it."""
        plan, self._unsure = self._unsure, None
        stand = [m for m in plan.moves if assigned.get(m.bundle) == m.target] if plan else []
        if plan and stand:
            then_s = plan.memory.moved_at_s
            moved_at_s = {**self.memory.moved_at_s, **{m.bundle: then_s[m.bundle] for m in stand}}
            shedder = plan.memory.shedder
            self.memory = replace(self.memory, shedder=shedder, moved_at_s=moved_at_s)
            self.recollection.placed(stand)

    def choose(
        self,
        bundles: Collection[BundleId],
        leaving: Mapping[BundleId, BrokerId] = _NOBODY,
        cause: Cause = Cause.UNOWNED,
    ) -> Choices:
        """Return a next owner for each bundle, or why there is none.

        None goes to the broker that it is ``leaving`` for ``cause``.
        """
        view = seen = self._viewing.view(afresh=bundles)
        moves: list[Move] = []
        placed: dict[BundleId, BrokerId] = {}
        refusals: dict[BundleId, tuple[Refusal, ...]] = {}
        for bundle in bundles:
            answer = self.planner.place(
                view,
                bundle,
                self.memory,
                self._rng,
                leaving=leaving.get(bundle),
                cause=cause,
            )
            view, self.memory = answer.view, answer.memory
            if answer.move is None:
                refusals[bundle] = answer.refusals
                self.recollection.unplaced(answer.refusals)
            else:
                moves.append(answer.move)
                self.recollection.placed([answer.move])
                placed[bundle] = answer.move.target
        self._chronicle.placed(moves, lambda: seen, self.planner)
        return Choices(placed, refusals)

    def obey(self, bundles: Mapping[BundleId, BrokerId], destination: BrokerId) -> Choices:
        """Return the destination that somebody named as the next owner of all of these."""
        moves = [
            Move(bundle, source, destination, Cause.REQUESTED) for bundle, source in bundles.items()
        ]
        self.recollection.placed(moves)
        self._chronicle.placed(moves, self._viewing.view, self.planner)
        return Choices(dict.fromkeys(bundles, destination), {})

    def barred(
        self, bundles: Collection[BundleId], brokers: Collection[BrokerId]
    ) -> Mapping[BrokerId, str]:
        """Return which of these brokers may not have all of the bundles, and why.

        Only what is a must counts: who has which for the sake of evenness does not.
        """
        view = self._viewing.view(afresh=bundles)
        return {
            BrokerId(refusal.subject): refusal.reason.value
            for bundle in bundles
            for refusal in self.planner.filters.eligible(view, bundle).refusals()
            if refusal.reason in _MUSTS and refusal.subject in brokers
        }

    def rested(self, bundles: Collection[BundleId], now_s: float) -> RoundMemory:
        """Return the memory with these left alone for the cool-down, as after a round."""
        moved_at_s = {**self.memory.moved_at_s, **dict.fromkeys(bundles, now_s)}
        return replace(self.memory, moved_at_s=moved_at_s)
