"""The leader: the tally, the rounds and the placements of a live one, on modelled reports."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.config.balancing import LeaderSettings
from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.core.plan import Cause, Move, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.tally import LoadTally
from loadmanager.simulator.absent import Absent
from loadmanager.simulator.agents import Agents
from loadmanager.simulator.reported import Reported

_NOBODY: Final[Mapping[BundleId, BrokerId]] = MappingProxyType({})
_TRY_AGAIN_S: Final = 2.0
"""A bundle that nobody could take is left on its draining broker for so long."""


class Leader:
    """Decides by what the agents have told it so far, and by nothing else.

    Everything here is asked with ``in_flight``, what was ordered and is not with its
    target yet. Until the target's report lists it, too, a bundle counts as on its way.

    Args:
        agents: whose reports and owned lists it sees.
        planner: the strategies and the budgets.
        settings: ``return_wait_s`` is how long brokers that vanished together are waited for.
        rng: for the choice among equals.
    """

    def __init__(
        self,
        agents: Agents,
        planner: Planner,
        settings: LeaderSettings,
        rng: np.random.Generator,
    ) -> None:
        self._agents = agents
        self._planner = planner
        self._rng = rng
        self._tally = LoadTally(weights=planner.weights)
        self._absent = Absent(settings.return_wait_s, planner.settings.max_lost_fraction)
        self._broker_rows = {broker: row for row, broker in enumerate(agents.brokers)}
        self._bundle_rows = {bundle: row for row, bundle in enumerate(agents.bundles)}
        self._planned: Indices = np.full(len(agents.bundles), -1, dtype=np.intp)
        self._reports: dict[int, Reported] = {}
        self._refused_until_s: dict[BundleId, float] = {}
        self.memory = RoundMemory()
        self.refusals: tuple[Refusal, ...] = ()
        self.view: ClusterView | None = None

    def tick(self, now_s: float) -> None:
        """Take what was reported by now, and add a sample to all averages."""
        self._take(now_s)
        self._tally.sample()

    def round(
        self,
        now_s: float,
        in_flight: Mapping[BundleId, BrokerId],
        unowned: Sequence[BundleId] = (),
    ) -> Plan:
        """Return what one round decides; draining brokers are not emptied by it."""
        waiting = self._follow(now_s, in_flight, unowned)
        view = self._seen(now_s, frozenset(unowned))
        placed = [bundle for bundle in unowned if bundle not in waiting]
        plan = self._planner.round(view, self.memory, self._rng, unowned=placed, draining=False)
        self.view, self.memory = view, plan.memory
        return plan

    def place(
        self,
        now_s: float,
        bundles: Collection[BundleId],
        in_flight: Mapping[BundleId, BrokerId],
        leaving: Mapping[BundleId, BrokerId] = _NOBODY,
        cause: Cause = Cause.UNOWNED,
    ) -> list[Move]:
        """Return a next owner for each bundle that gets one now, between the rounds.

        None goes to the broker that it is ``leaving`` for ``cause``. What nobody owns and
        is kept for its broker's return gets none; `refusals` tell of the others without.
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

    def empty(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], turns: int = 1
    ) -> list[Move]:
        """Return what leaves brokers that are known to drain, and where it goes.

        Of each broker no more bundles are under way at a time than the planner allows.
        Where a step is longer than a hand-over takes, that happens in several ``turns``.
        """
        self._take(now_s)
        leaving = self._due(now_s, in_flight, turns)
        if not leaving:
            return []
        moves = self.place(now_s, leaving, in_flight, leaving, Cause.DRAINING)
        placed = {move.bundle for move in moves}
        again_s = now_s + _TRY_AGAIN_S
        self._refused_until_s.update((one, again_s) for one in leaving if one not in placed)
        return moves

    def averages(self) -> Mapping[BundleId, BundleAverages]:
        """Return the averages of every bundle that has a sample."""
        return self._tally.averages()

    def _take(self, now_s: float) -> None:
        for news in self._agents.news(now_s):
            if isinstance(news, Reported):
                self._tally.put(news.load())
                self._reports[news.row] = news
            else:
                self._tally.forget(news.broker, news.seen_s)
                self._reports.pop(news.row, None)

    def _follow(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], unowned: Sequence[BundleId]
    ) -> frozenset[BundleId]:
        """Take up reports and orders; return what is kept for an absent broker's return."""
        self._take(now_s)
        owner = self._agents.owner
        self._planned = np.where(owner >= 0, owner, self._planned)
        for bundle, target in in_flight.items():
            self._planned[self._bundle_rows[bundle]] = self._broker_rows[target]
        orphans: dict[BundleId, BrokerId] = {}
        for bundle in unowned:
            planned = int(self._planned[self._bundle_rows[bundle]])
            if planned >= 0 and planned not in self._reports:
                orphans[bundle] = self._agents.brokers[planned]
        return self._absent.awaited(now_s, orphans, self._tally.brokers)

    def _seen(self, now_s: float, afresh: frozenset[BundleId]) -> ClusterView:
        """Return the cluster now; what is to be placed ``afresh`` counts as on nobody."""
        names, brokers = self._agents.bundles, self._agents.brokers
        planned = {
            names[row]: brokers[self._planned[row]]
            for row in self._under_way().tolist()
            if names[row] not in afresh
        }
        return self._tally.view(now_s, in_flight=planned)

    def _under_way(self) -> Indices:
        """Return the rows of bundles whose planned owner is known and does not list them."""
        away = self._planned >= 0
        known = np.zeros(len(self._agents.brokers), dtype=np.bool_)
        known[list(self._reports)] = True
        away &= known[self._planned]
        for broker, report in self._reports.items():
            rows = report.rows
            away[rows[self._planned[rows] == broker]] = False
        return np.flatnonzero(away)

    def _due(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], turns: int
    ) -> Mapping[BundleId, BrokerId]:
        """Return what is to leave draining brokers now, each with the broker it leaves."""
        draining = [row for row, report in self._reports.items() if report.draining]
        if not draining:
            self._refused_until_s.clear()
            return _NOBODY
        self._follow(now_s, in_flight, ())
        owner = self._agents.owner
        under_way = Counter(
            int(owner[row])
            for row in map(self._bundle_rows.__getitem__, in_flight)
            if owner[row] != self._planned[row]
        )
        most = max(self._planner.settings.in_flight_per_broker, 1)
        found: dict[BundleId, BrokerId] = {}
        for row in sorted(draining):
            left = (most - under_way[row]) * turns
            staying = (self._agents.bundles[one] for one in np.flatnonzero(self._planned == row))
            free = [bundle for bundle in staying if self._may_leave(bundle, now_s)]
            found |= dict.fromkeys(free[: max(left, 0)], self._agents.brokers[row])
        return found

    def _may_leave(self, bundle: BundleId, now_s: float) -> bool:
        if self._refused_until_s.get(bundle, 0.0) > now_s:
            return False
        return not belongs_to_a_broker(bundle)
