"""The modelled leader: tracker, planner, placement and drains of a sidecar, on modelled reports."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.config.balancing import LeaderSettings
from loadmanager.core.absences import AbsenceRules, Absences
from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.draining import Drains
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.plan import Cause, Move, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.round_memory import RoundMemory
from loadmanager.simulator.agents import Agents
from loadmanager.simulator.reports import Reported
from loadmanager.simulator.world import World

SESSION_S: Final = 30.0
"""The session timeout, unless a scenario sets another."""

_NOBODY: Final[Mapping[BundleId, BrokerId]] = MappingProxyType({})


class Leader:
    """Decides only by the reports of agents.

    The caller passes the bundles ``in_flight``: ordered, and not served by the target yet. A bundle
    counts as in flight until the report of the target lists it.

    ``view`` is the view of the last round, ``memory`` the state of the strategies; ``refusals`` are
    the reasons why bundles of the last `place` have no owner.

    Args:
        agents: the source of reports and owned lists.
        planner: the strategies and the budgets.
        settings: ``return_wait_s`` is how long the leader waits for brokers that vanished together.
        rng: for random choices.
        policies: the operators' policies.
        session_s: the session timeout: brokers that vanish within it count as gone together.
    """

    def __init__(
        self,
        agents: Agents,
        planner: Planner,
        settings: LeaderSettings,
        rng: np.random.Generator,
        *,
        policies: Policies = NO_POLICIES,
        session_s: float = SESSION_S,
    ) -> None:
        self._policies = policies
        self._agents = agents
        self._planner = planner
        self._rng = rng
        self.tracker = LoadTracker(weights=planner.weights)
        self._absences = Absences()
        self._absence_rules = AbsenceRules(
            return_wait_s=settings.return_wait_s,
            max_lost_fraction=planner.settings.max_lost_fraction,
            session_s=session_s,
        )
        self._broker_rows = {broker: row for row, broker in enumerate(agents.brokers)}
        self._bundle_rows = {bundle: row for row, bundle in enumerate(agents.bundles)}
        self._last_planned: Indices = np.full(len(agents.bundles), -1, dtype=np.intp)
        self._planned = self._last_planned
        self._reports: dict[int, Reported] = {}
        self.memory = RoundMemory()
        self.refusals: tuple[Refusal, ...] = ()
        self.view = self.tracker.view(0.0)

    def tick(self, now_s: float) -> None:
        self._take(now_s)
        self.tracker.sample()
        self._plan(_NOBODY)

    def round(
        self,
        now_s: float,
        in_flight: Mapping[BundleId, BrokerId],
        unowned: Sequence[BundleId] = (),
    ) -> Plan:
        """Return the decision of one round; it does not drain brokers."""
        waiting = self._follow(now_s, in_flight, unowned)
        view = self._seen(now_s, frozenset(unowned))
        placed = [bundle for bundle in unowned if bundle not in waiting]
        plan = self._planner.round(view, self.memory, self._rng, unowned=placed, draining=False)
        self.view, self.memory = view, plan.memory
        return plan

    def due_early(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], unowned: Sequence[BundleId]
    ) -> bool:
        self._follow(now_s, in_flight, unowned)
        return self._planner.due_early(self._seen(now_s, frozenset(unowned)), self.memory)

    def place(
        self,
        now_s: float,
        bundles: Collection[BundleId],
        in_flight: Mapping[BundleId, BrokerId],
        leaving: Mapping[BundleId, BrokerId] = _NOBODY,
        cause: Cause = Cause.UNOWNED,
    ) -> list[Move]:
        """Return moves for the bundles that are placed between rounds.

        No bundle goes to the broker that it is ``leaving`` because of ``cause``. An unowned bundle
        that waits for the return of its broker is not placed.
        """
        unowned = [bundle for bundle in bundles if bundle not in leaving]
        waiting = self._follow(now_s, in_flight, unowned)
        wanted = [bundle for bundle in bundles if bundle not in waiting]
        self.refusals = ()
        if not wanted:
            return []
        view = self._seen(now_s, frozenset(bundles))
        moves: list[Move] = []
        refusals: list[Refusal] = []
        for bundle in wanted:
            answer = self._planner.place(
                view, bundle, self.memory, self._rng, leaving=leaving.get(bundle), cause=cause
            )
            view, self.memory = answer.view, answer.memory
            if answer.move is None:
                refusals += answer.refusals
            else:
                moves.append(answer.move)
        self.refusals = tuple(refusals)
        return moves

    def draining(self, now_s: float) -> tuple[BrokerId, ...]:
        self._take(now_s)
        reports = (report for _, report in sorted(self._reports.items()))
        return tuple(report.broker for report in reports if report.draining)

    @property
    def averages(self) -> Mapping[BundleId, BundleAverages]:
        return self.tracker.averages()

    def _take(self, now_s: float) -> None:
        for news in self._agents.news(now_s):
            if isinstance(news, Reported):
                self.tracker.put(news.load())
                self._reports[news.row] = news
            else:
                self.tracker.forget(news.broker, news.seen_s)
                self._reports.pop(news.row, None)

    def _follow(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], unowned: Sequence[BundleId]
    ) -> frozenset[BundleId]:
        """Process reports and orders; return the bundles that wait for the return of a broker."""
        self._take(now_s)
        self._plan(in_flight)
        orphans: dict[BundleId, BrokerId] = {}
        for bundle in unowned:
            planned = int(self._last_planned[self._bundle_rows[bundle]])
            if planned >= 0 and planned not in self._reports:
                orphans[bundle] = self._agents.brokers[planned]
        absent = set(orphans.values())
        self._absences.observe(now_s, absent, self.tracker.brokers, self._absence_rules)
        until_s = self._absences.awaited_until_s
        return frozenset(
            bundle for bundle, broker in orphans.items() if until_s.get(broker, 0.0) > now_s
        )

    def _plan(self, in_flight: Mapping[BundleId, BrokerId]) -> None:
        self._planned = self._agents.owner.copy()
        for bundle, target in in_flight.items():
            self._planned[self._bundle_rows[bundle]] = self._broker_rows[target]
        self._last_planned = np.where(self._planned >= 0, self._planned, self._last_planned)

    def _seen(self, now_s: float, afresh: frozenset[BundleId]) -> ClusterView:
        """Return the current view; bundles to be placed ``afresh`` count as unowned."""
        names, brokers = self._agents.bundles, self._agents.brokers
        planned = {
            names[row]: brokers[self._planned[row]]
            for row in self._under_way().tolist()
            if names[row] not in afresh
        }
        return self.tracker.view(now_s, in_flight=planned, policies=self._policies)

    def _under_way(self) -> Indices:
        """Return the rows of bundles that the report of their planned owner does not list."""
        if not self._reports:
            return np.zeros(0, dtype=np.intp)
        listed = np.concatenate([report.rows for report in self._reports.values()])
        counts = [len(report.rows) for report in self._reports.values()]
        by = np.repeat(np.array(list(self._reports), dtype=np.intp), counts)
        reports = np.zeros(len(self._agents.brokers) + 1, dtype=np.bool_)
        reports[list(self._reports)] = True  # The last one is for unowned bundles (row -1).
        away = reports[self._planned]
        away[listed[self._planned[listed] == by]] = False
        return np.flatnonzero(away)


@dataclass(slots=True, kw_only=True)
class Emptying:
    """Selects the bundles that leave draining brokers, as the leader of a sidecar does.

    At most ``at_a_time`` bundles of a broker are in flight at any moment. If a step is longer than
    a hand-over, one call selects as many as can be moved within the step.
    """

    world: World
    at_a_time: int
    step_s: float
    _drains: Drains = field(default_factory=Drains)

    def due(self, draining: Sequence[BrokerId], now_s: float) -> Mapping[BundleId, BrokerId]:
        """Return the bundles that leave these brokers now, with their brokers."""
        leaving, turns = Counter(self.world.hand_overs.sources), self._turns()
        rows = {broker: self.world.brokers.index(broker) for broker in draining}
        most = {
            broker: max(self.at_a_time - leaving[row], 0) * turns for broker, row in rows.items()
        }
        return self._drains.due(self._staying(rows), most, now_s)

    def refused(self, bundles: Collection[BundleId], now_s: float) -> None:
        self._drains.refused(bundles, now_s)

    def _staying(self, rows: Mapping[BrokerId, int]) -> Iterator[tuple[BundleId, BrokerId]]:
        hand_overs = self.world.hand_overs
        for broker, row in rows.items():
            held = (self.world.bundles[one] for one in hand_overs.held_by(row).tolist())
            yield from ((one, broker) for one in held if one not in hand_overs.under_way)

    def _turns(self) -> int:
        turn_s = self.world.hand_overs.turn_s
        return max(int(self.step_s / turn_s), 1) if turn_s > 0 else len(self.world.bundles)
