from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Final

from loadmanager.core.explaining import (
    Decision,
    Outcome,
    decisions_of,
    move_decision,
    refusal_decision,
)
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Move, Refusal
from loadmanager.core.planner import Plan
from loadmanager.ports.host import Clock
from loadmanager.ports.leading import DecisionFilter

MOST_DECISIONS: Final = 2000
MOST_SUBJECTS: Final = 20_000

_Kept = tuple[Decision | None, Decision | None]


class DecisionLog:
    """The decisions of one term: the latest overall, and the latest about each bundle and broker.

    For each subject the last move and the last refusal are kept; the subjects with the oldest
    decisions are dropped first. ``task_of`` returns the number of a bundle's live task, 0 for
    none.
    """

    def __init__(
        self,
        clock: Clock,
        epoch: int,
        *,
        task_of: Callable[[BundleId], int] = lambda _: 0,
        most_decisions: int = MOST_DECISIONS,
        most_subjects: int = MOST_SUBJECTS,
    ) -> None:
        self._clock = clock
        self._epoch = epoch
        self._task_of = task_of
        self._recent: deque[Decision] = deque(maxlen=most_decisions)
        self._most_subjects = most_subjects
        self._about: OrderedDict[str, _Kept] = OrderedDict()
        self.refusals: dict[str, list[Refusal]] | None = None
        self.rounds = 0
        self._entries = 0
        self.last_round_at_ms = 0

    def round_done(self, plan: Plan, brokers: Iterable[BrokerId]) -> None:
        """Record the refusals and observed moves of a round on all ``brokers``.

        Its moves are recorded by `moved` once they are ordered.
        """
        self.rounds += 1
        self.last_round_at_ms = self._clock.wall_ms()
        self.refusals = {}
        for refusal in plan.refusals:
            self.refusals.setdefault(refusal.subject, []).append(refusal)
        known = frozenset[str](brokers)
        for made in decisions_of(
            replace(plan, moves=()),
            at_ms=self.last_round_at_ms,
            epoch=self._epoch,
            number=self.rounds,
        ):
            decision = self._entered(made)
            # A round has an entry for every broker; these would displace the moves.
            if decision.subject not in known:
                self._recent.append(decision)

    def moved(self, moves: Iterable[Move]) -> None:
        self._order(moves, Outcome.MOVED, at_ms=self.last_round_at_ms, number=self.rounds)

    def placed(self, moves: Iterable[Move]) -> None:
        self._order(moves, Outcome.PLACED, at_ms=self._clock.wall_ms(), number=0)

    def _order(self, moves: Iterable[Move], outcome: Outcome, *, at_ms: int, number: int) -> None:
        for move in moves:
            decision = move_decision(move, outcome, at_ms=at_ms, epoch=self._epoch, number=number)
            decision = replace(decision, task=self._task_of(move.bundle))
            self._recent.append(self._entered(decision))

    def unplaced(self, refusals: Iterable[Refusal]) -> None:
        """Record why unowned bundles were not placed; they are tried again soon."""
        at_ms = self._clock.wall_ms()
        for one in refusals:
            self._entered(refusal_decision(one, at_ms=at_ms, epoch=self._epoch))

    def decisions(self, wish: DecisionFilter) -> Sequence[Decision]:
        known = {one.number: one for one in self._recent}
        if wish.subject:
            known |= {one.number: one for one in self.about(wish.subject)}
        wanted = (one for _, one in sorted(known.items(), reverse=True) if wish.wants(one))
        return list(islice(wanted, wish.limit))

    def about(self, subject: str) -> tuple[Decision, ...]:
        kept = [one for one in self._about.get(subject, (None, None)) if one is not None]
        return tuple(sorted(kept, key=lambda one: (one.at_ms, one.round), reverse=True))

    def _entered(self, decision: Decision) -> Decision:
        """Number a decision, and store it as the last one about its parties."""
        self._entries += 1
        decision = replace(decision, number=self._entries)
        left_alone = decision.outcome is Outcome.LEFT_ALONE
        parties = (decision.subject, decision.source, decision.target)
        for subject in dict.fromkeys(party for party in parties if party):
            move, refusal = self._about.pop(subject, (None, None))
            self._about[subject] = (move, decision) if left_alone else (decision, refusal)
        while len(self._about) > self._most_subjects:
            self._about.popitem(last=False)
        return decision
