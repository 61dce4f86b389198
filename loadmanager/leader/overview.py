from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from loadmanager.common.context import Context
from loadmanager.common.overview import (
    MOST_BROKERS,
    MOST_DECISIONS,
    MOST_MISSING,
    MOST_TASKS,
    most_refused,
    resources_of,
    scarcest_first,
)
from loadmanager.core.balance_course import last_hour
from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.ids import BrokerId
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY
from loadmanager.leader.explain import Explainer
from loadmanager.leader.leadership import Leadership
from loadmanager.leader.term import LeaderTerm
from loadmanager.ports.leading import DecisionFilter, TaskFilter
from loadmanager.ports.overview import BrokerUse, MissingBroker, Overview, RefusalCount

_MOST_POINTS: Final = 240
_ACTIONS: Final = ("explain", "pause", "observe", "resume", "unload", "drain", "undrain")
_SPLIT: Final = "split"


@dataclass(slots=True, eq=False)
class OverviewRequests:
    context: Context
    leading: Leadership
    explainer: Explainer
    cluster: str
    splits: bool = True
    _refused: tuple[tuple[int, int], Sequence[RefusalCount]] = field(
        default=((0, 0), ()), init=False
    )

    def overview(self) -> Overview:
        term = self.leading.require_term()
        tasks = self.explainer.tasks(TaskFilter(limit=MOST_TASKS))
        now_s, at_ms = tasks.now_s, tasks.at_ms
        brokers = scarcest_first(self._brokers(term, now_s))
        return Overview(
            cluster=self.cluster,
            leader=tasks.leader,
            epoch=tasks.epoch,
            since_ms=term.began_at_ms,
            at_ms=at_ms,
            measure="use",
            balancing=term.steering.balancing,
            course=last_hour(term.optimality_watch.course, at_ms, _MOST_POINTS),
            brokers=brokers[:MOST_BROKERS],
            brokers_in_all=len(brokers),
            resources=resources_of(brokers),
            bundles=len(self.context.cluster_state.owners),
            unowned=len(term.placement_worker.unowned),
            missing=list(self._missing(term, at_ms, now_s))[:MOST_MISSING],
            tasks=tasks,
            gains=term.gains.updated(),
            refusals=self._refusals(term, tasks.epoch),
            decisions=self.explainer.decisions(DecisionFilter(limit=MOST_DECISIONS)),
            actions=(*_ACTIONS, _SPLIT) if self.splits else _ACTIONS,
        )

    def _brokers(self, term: LeaderTerm, now_s: float) -> Iterator[BrokerUse]:
        reports = self.context.cluster_state.loads.reports
        for broker, load in term.tracker.loads.items():
            known = reports.get(broker)
            yield BrokerUse(
                broker=broker,
                cpu_fraction=_fraction(load, CPU),
                memory_fraction=_fraction(load, MEMORY),
                bandwidth_in_fraction=_fraction(load, BANDWIDTH_IN),
                bandwidth_out_fraction=_fraction(load, BANDWIDTH_OUT),
                bundles=len(load.listing.names),
                topics=load.topics,
                msgs_per_s=load.totals.msgs_per_s,
                bytes_per_s=load.totals.bytes_per_s,
                draining=load.draining,
                healthy=known is None or known.report.healthy,
                report_age_s=max(now_s - load.seen_s, 0.0),
            )

    def _missing(self, term: LeaderTerm, at_ms: int, now_s: float) -> Iterator[MissingBroker]:
        registered, reported = self.context.cluster_state.brokers, term.tracker.brokers
        for broker, left_s in sorted(term.tracker.departed_at_s.items(), key=lambda one: -one[1]):
            if broker not in registered:
                since_ms = at_ms - round(1000 * (now_s - left_s))
                yield MissingBroker(broker=broker, why="left, or crashed", since_ms=since_ms)
        for broker in sorted(registered.keys() - reported):
            yield MissingBroker(broker=broker, why=_why_unreported(broker, term))

    def _refusals(self, term: LeaderTerm, epoch: int) -> Sequence[RefusalCount]:
        """Count the refusals of the last round, once for all requests."""
        log = term.decision_log
        if self._refused[0] != (epoch, log.rounds):
            every = (one for refusals in (log.refusals or {}).values() for one in refusals)
            self._refused = ((epoch, log.rounds), most_refused(every))
        return self._refused[1]


def _fraction(load: BrokerLoad, resource: int) -> float | None:
    limit = load.limit[resource]
    return load.usage[resource] / limit if limit > 0 else None


def _why_unreported(broker: BrokerId, term: LeaderTerm) -> str:
    left_out = term.harmful.brokers.get(broker)
    if left_out is None:
        return "registered, and has reported no load yet"
    return f"left out of decisions: its report makes them fail ({left_out})"
