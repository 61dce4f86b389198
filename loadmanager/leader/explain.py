import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from loadmanager.common.context import Context
from loadmanager.config.forms import ConfigError
from loadmanager.config.strategies import Wanted, planner_for
from loadmanager.core.balance_course import last_hour
from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cluster import ClusterView
from loadmanager.core.errors import InvalidName
from loadmanager.core.explaining import Decision, Explanation, Known, explain_broker, explain_bundle
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    belongs_to_a_broker,
    namespace_of,
    parse_broker,
    parse_bundle,
)
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.round_memory import shifted
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY
from loadmanager.core.snapshot.agreement import agreed
from loadmanager.core.snapshot.document import RunningLoad, Snapshot
from loadmanager.core.snapshot.encoding import encode_snapshot, in_force
from loadmanager.leader.decisions import Observation
from loadmanager.leader.term import Leadership, LeaderTerm
from loadmanager.ports.administration import Unfit
from loadmanager.ports.leading import (
    Account,
    Assessment,
    DecisionFilter,
    PlanOverrides,
    Preview,
    ShadowList,
    SubjectUnknown,
    TaskFilter,
    TaskList,
)
from loadmanager.ports.lookup import Unavailable
from loadmanager.ports.overview import BrokerUse, MissingBroker, Overview, RefusalCount, ResourceUse

MOST_BROKERS: Final = 200
MOST_TASKS: Final = 60
MOST_DECISIONS: Final = 60
MOST_MISSING: Final = 50
_MOST_REFUSALS: Final = 12


def scarcest_first(brokers: Iterable[BrokerUse]) -> list[BrokerUse]:
    return sorted(
        brokers, key=lambda one: (-(one.largest_fraction or 0.0), -one.bytes_per_s, one.broker)
    )


def resources_of(brokers: Iterable[BrokerUse]) -> list[ResourceUse]:
    uses: dict[str, list[tuple[float, BrokerUse]]] = {}
    for one in brokers:
        for resource, fraction in one.uses.items():
            uses.setdefault(resource, []).append((fraction, one))
    found = []
    for resource, every in uses.items():
        highest, broker = max(every, key=lambda use: use[0])
        mean = sum(fraction for fraction, _ in every) / len(every)
        found.append(
            ResourceUse(
                resource=resource,
                mean_fraction=mean,
                highest_fraction=highest,
                broker=broker.broker,
            )
        )
    return sorted(found, key=lambda one: -one.highest_fraction)


def most_refused(refusals: Iterable[Refusal]) -> Sequence[RefusalCount]:
    counts: Counter[Reason] = Counter()
    examples: dict[Reason, Refusal] = {}
    for one in refusals:
        counts[one.reason] += 1
        examples.setdefault(one.reason, one)
    return [
        RefusalCount(
            reason=reason,
            count=count,
            subject=examples[reason].subject,
            detail=examples[reason].detail,
        )
        for reason, count in counts.most_common(_MOST_REFUSALS)
    ]


class Explainer:
    """Answers for the leader; raises `LeaderElsewhere`, and `Unavailable` while none leads."""

    def __init__(self, context: Context, leading: Leadership, cluster: str) -> None:
        self._context = context
        self._leading = leading
        self._cluster = cluster

    async def snapshot(self) -> bytes:
        look = self._leading.require_term().look()
        if not look.view.brokers.names:
            raise Unavailable("no broker has a load report yet")
        snapshot = self._snapshot_of(look)
        # Encoding a large cluster takes seconds; the snapshot is immutable.
        return await asyncio.to_thread(_written, snapshot)

    def explain(self, subject: str) -> Account:
        """Raises `InvalidName`, or `SubjectUnknown`: the leader has no such bundle or broker."""
        leader_term = self._leading.require_term()
        look = leader_term.look()
        if subject in look.quarantined:
            raise SubjectUnknown(
                f"{subject}: left out of all decisions until it reports something else, because "
                f"its report makes them fail: {look.quarantined[BrokerId(subject)]}"
            )
        past = leader_term.decision_log
        known = Known(
            view=look.view, planner=look.steered, memory=look.memory, refusals=past.refusals
        )
        return Account(
            explanation=_explained(known, subject, self._with_tasks(past.about(subject))),
            tasks=self._tasks_of(subject),
            assessment=leader_term.optimality_watch.last,
            leader=self._context.identity.broker,
            epoch=look.epoch,
            at_ms=self._context.clock.wall_ms(),
            last_round=past.rounds,
            last_round_at_ms=past.last_round_at_ms,
            in_force=in_force(look.steered),
            balancing=look.balancing,
        )

    def assessment(self) -> Assessment | None:
        return self._leading.require_term().optimality_watch.last

    def shadows(self) -> ShadowList:
        leader_term = self._leading.require_term()
        return ShadowList(
            active=type(leader_term.look().planner.shedder).__name__,
            shadows=dict(leader_term.optimality_watch.shadows),
        )

    def decisions(self, wish: DecisionFilter) -> Sequence[Decision]:
        return self._with_tasks(self._leading.require_term().decision_log.decisions(wish))

    def tasks(self, wish: TaskFilter) -> TaskList:
        controller = self._leading.require_term().tasks
        every = (*controller.tasks, *reversed(controller.ended))
        wanted = [task for task in every if wish.wants(task)]
        return TaskList(
            tasks=wanted[: wish.limit],
            found=len(wanted),
            leader=self._context.identity.broker,
            epoch=controller.tasks.epoch,
            at_ms=self._context.clock.wall_ms(),
            now_s=self._context.clock.monotonic_s(),
        )

    def _with_tasks(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        controller = self._leading.require_term().tasks
        states = {task.number: task.state for task in (*controller.ended, *controller.tasks)}
        return [replace(one, task_state=states.get(one.task)) for one in decisions]

    def _tasks_of(self, bundle: str) -> TaskList:
        listed = self.tasks(TaskFilter(limit=2, bundle=bundle))
        none_live = bool(listed.tasks) and listed.tasks[0].state.ended
        return replace(listed, tasks=listed.tasks[:1]) if none_live else listed

    def _snapshot_of(self, look: Observation) -> Snapshot:
        view, cluster_state = look.view, self._context.cluster_state
        wall_ms = self._context.clock.wall_ms()
        names = view.brokers.names
        # The view and the cluster state differ only by reads since the view was made.
        reports = {name: cluster_state.loads.reports[name].report for name in names}
        owners = {
            bundle: holding.broker
            for bundle, holding in cluster_state.owners.items()
            if holding.broker in reports
        }
        in_flight = dict(view.moved)
        unowned = tuple(bundle for bundle in look.unowned if bundle not in owners)
        ages_s = np.maximum(view.age_s, 0.0).tolist()
        changed_ago_s = view.now_s - view.membership_changed_s
        return Snapshot(
            reports=reports,
            taken_at_ms=wall_ms,
            cluster=self._cluster,
            epoch=look.epoch,
            age_s=dict(zip(names, ages_s, strict=True)),
            averages=look.averages,
            running=_running(view),
            boundaries=self._boundaries([*owners, *in_flight]),
            owners=owners,
            in_flight=in_flight,
            unowned=unowned,
            policies=view.policies,
            memory=shifted(look.memory, wall_ms / 1000 - view.now_s),
            membership_changed_ago_s=changed_ago_s if np.isfinite(changed_ago_s) else None,
            departed_ago_s=tuple(view.now_s - left_s for left_s in view.departures_s),
            in_force=in_force(look.steered),
        )

    def _boundaries(self, bundles: Sequence[BundleId]) -> dict[Namespace, Boundaries]:
        namespaces = {namespace_of(one) for one in bundles if not belongs_to_a_broker(one)}
        found = {name: self._context.cluster_state.known_boundaries(name) for name in namespaces}
        known = {name: boundaries for name, boundaries in found.items() if boundaries is not None}
        return known if len(known) == len(found) else {}


def _written(snapshot: Snapshot) -> bytes:
    # During a split, owners and boundaries may briefly be inconsistent.
    return encode_snapshot(agreed("the live picture", snapshot, [], lenient=True))


def _running(view: ClusterView) -> dict[BrokerId, RunningLoad]:
    brokers = view.brokers
    rows = zip(brokers.names, brokers.load_ema.tolist(), brokers.bytes_ema.tolist(), strict=True)
    return {
        name: RunningLoad(load, bytes_per_s)
        for name, load, bytes_per_s in rows
        if np.isfinite(load) and np.isfinite(bytes_per_s)
    }


def _explained(known: Known, subject: str, decisions: Sequence[Decision]) -> Explanation:
    if "/" in subject:
        bundle = parse_bundle(subject)
        if not decisions and known.view.bundles.row(bundle) is None:
            raise SubjectUnknown(f"{bundle}: no broker reports it and nothing was decided about it")
        return explain_bundle(known, bundle, decisions)
    try:
        broker = parse_broker(subject)
    except InvalidName:
        expected = "a broker, host:port, or a bundle, tenant/namespace/0xLLLLLLLL_0xUUUUUUUU"
        raise InvalidName("subject", subject, expected) from None
    if broker not in known.view.brokers.index:
        raise SubjectUnknown(f"{broker}: no such broker is registered")
    return explain_broker(known, broker, decisions)


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
    quarantined = term.quarantined.get(broker)
    if quarantined is None:
        return "registered, and has reported no load yet"
    return f"left out of decisions: its report makes them fail ({quarantined})"


async def preview_round(leading: Leadership, wish: PlanOverrides) -> Preview:
    """Return the result of a round of the leader at this time, which is not carried out.

    Raises as `Explainer`, and `Unfit`: a strategy or setting is unknown, or a value is invalid.
    """
    look = leading.require_term().look()
    if not look.view.brokers.names:
        raise Unavailable("no broker has a load report yet")
    planner = _wanted(look.planner, wish)
    # View and memory are immutable, and the leader's own generator is not used.
    rng = np.random.default_rng(wish.seed)
    return await asyncio.to_thread(_previewed, planner, look, rng)


def _previewed(planner: Planner, look: Observation, rng: np.random.Generator) -> Preview:
    view = look.view
    plan = planner.round(view, look.memory, rng, draining=False)
    return Preview(
        plan=plan,
        optimality=planner.optimality(view, plan.memory),
        with_moves=planner.optimality(view, plan.memory, (*plan.moves, *plan.observed)),
        epoch=look.epoch,
        in_force=in_force(planner),
        balancing=look.balancing,
    )


def _wanted(planner: Planner, wish: PlanOverrides) -> Planner:
    if not (wish.shedder or wish.placement or wish.mode or wish.settings):
        return planner
    wanted = Wanted(
        shedder=wish.shedder or None,
        placement=wish.placement or None,
        mode=wish.mode or None,
        settings=wish.settings,
    )
    try:
        return planner_for("the leader", in_force(planner), wanted)
    except ConfigError as error:
        raise Unfit("; ".join(error.faults).replace("--set ", "set=")) from error
