from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.filters import FINDING, Eligibility, Filters, Limits, RestrictedTargets
from loadmanager.core.ids import BrokerId, BundleId, namespace_of
from loadmanager.core.memory import Memory
from loadmanager.core.placement import Placement, choose
from loadmanager.core.plan import Cause, Move, Offer, Reason, Refusal, Steps
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.projection import CostModel, after_move, loads, loads_with
from loadmanager.core.scores import ResourceWeights

_DOMINANT_FRACTION = 0.5
"""A bundle with more than this share of its broker's load cannot be balanced by moving it."""


@dataclass(slots=True, kw_only=True)
class RoundWork:
    """The projected view and the decisions so far.

    ``memory`` is the placement's. ``moves_left_in_hour`` is the rest of the hourly budget.
    """

    view: ClusterView
    settings: PlannerSettings
    placement: Placement
    filters: Filters
    cost: CostModel
    weights: ResourceWeights
    memory: Memory
    rng: np.random.Generator
    moves_left_in_hour: int = 0
    moves: list[Move] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    shed_moves: int = 0
    shed_bytes_per_s: float = 0.0
    in_flight: Counter[BrokerId] = field(default_factory=Counter)
    steps: Steps = field(default_factory=Steps)

    def place(
        self,
        bundle: BundleId,
        *,
        leaving: BrokerId | None = None,
        cause: Cause = Cause.UNOWNED,
    ) -> Move | None:
        """Assign a bundle to the broker that the placement chooses.

        The bundle has no owner, or is ``leaving`` a broker, which cannot be chosen.
        """
        row = None if leaving is None else self.view.brokers.index.get(leaving)
        eligible = self._eligible(bundle, row)
        mask = eligible.mask
        if row is not None:
            mask[row] = False
        target = self._choose(np.flatnonzero(mask), bundle)
        if target is None:
            self._refuse(bundle, Reason.NO_CANDIDATE, _why_none(eligible))
            return None
        source = None if row is None else leaving
        return self._move(Offer(bundle, source or target, cause), source, target)

    def drain(self) -> None:
        left = self.settings.drain_moves_per_round
        draining = self.view.brokers.draining
        for row in np.flatnonzero(draining).tolist():
            source = self.view.brokers.names[row]
            for bundle in self.view.bundles_of(source):
                at = self.view.bundles.row(bundle)
                if bundle in self.view.moved or (at is not None and self.view.bundles.system[at]):
                    continue
                if left == 0 or self.steps.left <= 0:
                    self._refuse(bundle, Reason.ROUND_BUDGET, f"draining {source}")
                    return
                left -= self.place(bundle, leaving=source, cause=Cause.DRAINING) is not None

    def weigh(self, offers: Iterable[Offer]) -> None:
        """Decide on a shedder's offers, in order. Call it once per round."""
        self._count_under_way()
        rows = np.flatnonzero(self.view.age_s > self.filters.max_report_age_s)
        stale = frozenset(self.view.brokers.names[row] for row in rows.tolist())
        for offer in offers:
            reason = self._forbidden(offer, stale) or self._budget(offer)
            if reason is not None:
                self._refuse(offer.bundle, reason, f"on {offer.source}")
            elif self.settings.mode is Mode.SAFE:
                self._improve(offer)
            else:
                self._obey(offer)

    def limits(self) -> Limits:
        view, filters = self.view, self.filters
        movable = np.ones(len(view.bundles.known), dtype=np.bool_)
        for namespace in self.settings.excluded_namespaces:
            rows = [row for row in view.bundles.namespaces.get(namespace, ()) if row < len(movable)]
            movable[rows] = False
        fresh = view.age_s <= filters.max_report_age_s
        movable &= fresh[view.owned.listed_by] & (view.owned.listed_by >= 0)
        moves = self.settings.moves_per_round
        if self.settings.mode is Mode.SAFE:
            moves = min(moves, max(self.moves_left_in_hour, 0))
        return Limits(
            gives=fresh & ~view.brokers.draining,
            takes=filters.eligible(view, None).mask,
            movable=movable,
            moves=moves,
            steps=self.steps,
            restricted=RestrictedTargets(view, filters) if filters.tells_apart(view) else None,
        )

    def carry_out(self, offers: Iterable[Offer]) -> None:
        for offer, target in [(one, one.target) for one in offers if one.target is not None]:
            self._shed(offer, target)

    def _count_under_way(self) -> None:
        """Count the moves under way from before this round as well.

        Only the shedder's budgets need it: for placements between two rounds it would be wasted,
        ten thousand times in a cold start.
        """
        own = {move.bundle for move in self.moves}
        for bundle, target in self.view.moved.items():
            if bundle in own:
                continue
            self.in_flight[target] += 1
            source = self.view.listed_owner(bundle)
            if source is not None:
                self.in_flight[source] += 1

    def _forbidden(self, offer: Offer, stale: frozenset[BrokerId]) -> Reason | None:
        if offer.bundle in self.view.moved:
            return Reason.IN_FLIGHT
        if self.steps.left <= 0:
            return Reason.WORK_BUDGET
        excluded = self.settings.excluded_namespaces
        if excluded and namespace_of(offer.bundle) in excluded:
            return Reason.NAMESPACE_EXCLUDED
        return Reason.REPORT_STALE if offer.source in stale else None

    def _budget(self, offer: Offer) -> Reason | None:
        settings = self.settings
        if settings.mode is not Mode.SAFE:
            return None
        if self.shed_moves >= settings.moves_per_round:
            return Reason.ROUND_BUDGET
        if self.shed_moves >= self.moves_left_in_hour:
            return Reason.HOUR_BUDGET
        if self.in_flight[offer.source] >= settings.in_flight_per_broker:
            return Reason.BROKER_BUDGET
        wanted = self.shed_bytes_per_s + self._bytes_per_s(offer.bundle)
        if self.shed_moves and wanted > settings.bytes_per_s_per_round:
            return Reason.TRAFFIC_BUDGET
        return None

    def _obey(self, offer: Offer) -> None:
        """Carry out an offer as Pulsar does: with the planned target, else the placement's."""
        eligible = self._eligible(offer.bundle, self.view.row(offer.source))
        planned = None if offer.target is None else self.view.brokers.index.get(offer.target)
        if planned is not None and eligible.mask[planned]:
            target = offer.target
        else:
            target = self._choose(eligible.rows, offer.bundle)
        if target is None:
            self._refuse(offer.bundle, Reason.NO_CANDIDATE, _why_none(eligible))
        elif target == offer.source:
            self._refuse(offer.bundle, Reason.SAME_BROKER, f"{target} is its best place")
        else:
            self._shed(offer, target)

    def _improve(self, offer: Offer) -> None:
        """Carry out an offer if some broker would stay below the source's current load."""
        if not self.view.short_rates(offer.bundle).any():
            self._refuse(offer.bundle, Reason.NO_IMPROVEMENT, f"on {offer.source}, without traffic")
            return
        eligible = self._eligible(offer.bundle, self.view.row(offer.source))
        mask = eligible.mask
        mask[self.view.row(offer.source)] = False
        rows = self._with_room(np.flatnonzero(mask))
        if not len(rows):
            self._refuse(offer.bundle, Reason.NO_CANDIDATE, _why_none(eligible))
            return
        better = self._better(offer, rows)
        if not len(better):
            return
        planned = None if offer.target is None else self.view.brokers.index.get(offer.target)
        if planned is not None and planned in better:
            self._shed(offer, self.view.brokers.names[planned])
            return
        target = self._choose(better, offer.bundle)
        if target is None:
            self._refuse(offer.bundle, Reason.NO_CANDIDATE, "the placement takes none of them")
        else:
            self._shed(offer, target)

    def _eligible(self, bundle: BundleId, row: int | None) -> Eligibility:
        if row is not None:
            self.steps.spend(row, self.filters.steps(self.view, bundle), FINDING)
        return self.filters.eligible(self.view, bundle)

    def _with_room(self, rows: Indices) -> Indices:
        full = [
            self.view.brokers.index[broker]
            for broker, count in self.in_flight.items()
            if count >= self.settings.in_flight_per_broker
        ]
        return rows[~np.isin(rows, full)] if full else rows

    def _better(self, offer: Offer, rows: Indices) -> Indices:
        """Return the rows that would stay below the source's load by the margin, or refuse."""
        view, row = self.view, self.view.row(offer.source)
        before = float(loads(view, self.weights)[row])
        usage = self.cost.usage(view, offer.bundle, offer.source)
        msgs_per_s = float(view.short_rates(offer.bundle)[:2].sum())
        there = self.cost.elsewhere(view, offer.bundle, offer.source, usage, rows)
        after = loads_with(view, self.weights, rows, there, msgs_per_s)
        better = rows[after + self.settings.margin <= before]
        if len(better):
            return better
        rest = float(loads_with(view, self.weights, np.array([row]), -usage, -msgs_per_s)[0])
        detail = f"{offer.source} stands at {before:.3f}, without it at {rest:.3f}"
        if before - rest > _DOMINANT_FRACTION * before:
            self._refuse(offer.bundle, Reason.UNBALANCEABLE, f"{detail}: split it")
        else:
            self._refuse(offer.bundle, Reason.NO_IMPROVEMENT, detail)
        return better

    def _choose(self, rows: Indices, bundle: BundleId) -> BrokerId | None:
        ranking = self.placement.rank(self.view, rows, bundle, self.memory)
        self.memory = ranking.memory
        row = choose(ranking.best, self.rng)
        return None if row is None else self.view.brokers.names[row]

    def _shed(self, offer: Offer, target: BrokerId) -> None:
        self.shed_moves += 1
        self.shed_bytes_per_s += self._bytes_per_s(offer.bundle)
        self._move(offer, offer.source, target)

    def _move(self, offer: Offer, source: BrokerId | None, target: BrokerId) -> Move:
        move = Move(offer.bundle, source, target, offer.cause)
        self.view = after_move(self.view, self.cost, move)
        for broker in (source, target):
            if broker is not None:
                self.in_flight[broker] += 1
        self.moves.append(move)
        return move

    def _refuse(self, bundle: BundleId, reason: Reason, detail: str) -> None:
        self.refusals.append(Refusal(bundle, reason, detail))

    def _bytes_per_s(self, bundle: BundleId) -> float:
        return float(self.view.short_rates(bundle)[2:].sum())


def _why_none(eligible: Eligibility) -> str:
    reasons = Counter(refusal.reason for refusal in eligible.refusals())
    text = ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items()))
    return text or "no broker has room"
