import asyncio
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, computed_field
from pydantic.alias_generators import to_camel

from loadmanager.adapters.http.operations import Document, Query, Reply, Resource, Whole, operation
from loadmanager.admin.brokers import BalancingState
from loadmanager.admin.documents import (
    AssessmentDocument,
    OptimalityDocument,
    ShadowsDocument,
    TaskDocument,
    TasksDocument,
    TasksQuery,
    assessment_document,
    shadows_document,
    tasks_document,
)
from loadmanager.common.context import Context
from loadmanager.config.forms import ConfigError
from loadmanager.config.strategies import Wanted, planner_for
from loadmanager.core.averages import Running
from loadmanager.core.balancing import Balancing
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
from loadmanager.core.memory import shifted
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.planner import Planner
from loadmanager.core.playback import Playback
from loadmanager.core.snapshot.codec import agreed, encode_snapshot, in_force, in_force_to_json
from loadmanager.core.snapshot.document import InForce, Snapshot
from loadmanager.leader.decisions import Assessment, Observation
from loadmanager.leader.term import Leadership
from loadmanager.ports.lookup import Missing, Unavailable, Unfit

_DEFAULT_LIMIT: Final = 100
_MOST: Final = 10_000


class ExplainQuery(Query):
    """The subject of an explanation."""

    subject: str = Field(min_length=1)
    """A bundle, `tenant/namespace/0xLLLLLLLL_0xUUUUUUUU`, or a broker, `host:port`."""


class DecisionsQuery(Query):
    """Which decisions are listed."""

    limit: Whole = Field(_DEFAULT_LIMIT, ge=1, le=_MOST)
    """The largest number of decisions to list."""
    before: Whole = Field(0, ge=0, le=2**62)
    """Lists only decisions before this number, which is `next` of the last page; 0 lists all."""
    subject: str = ""
    """Lists only decisions about this bundle or broker."""
    broker: str = ""
    """Lists only moves from or to this broker."""
    namespace: str = ""
    """Lists only decisions about bundles of this `tenant/namespace`."""
    kinds: list[Literal["move", "observed", "placement", "drain", "unload", "left_alone"]] = Field(
        [], alias="kind"
    )
    """Lists only decisions of this kind: a `move` of a round, a move that was only `observed`, the
    `placement` of a bundle without an owner, a `drain` of its broker, an `unload` by hand, or a
    bundle or broker that was `left_alone`. The parameter may be repeated."""
    since_ms: Whole = Field(0, alias="sinceMs", ge=0, le=2**62)
    """Lists only decisions made at this time or later, in milliseconds since 1970."""

    def of(self, every: Iterable[Decision]) -> list[Decision]:
        found = (
            one
            for one in every
            if (not self.before or one.number < self.before)
            and (not self.subject or self.subject in {one.subject, one.source, one.target})
            and (not self.broker or self.broker in {one.source, one.target})
            and (not self.namespace or one.subject.startswith(f"{self.namespace}/"))
            and (not self.kinds or one.kind in self.kinds)
            and one.at_ms >= self.since_ms
        )
        return list(islice(found, self.limit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An explanation by the leader of ``epoch``, at ``at_ms``.

    ``last_round`` and ``last_round_at_ms`` are 0 before the first round of the epoch.
    ``tasks`` are the live task of a bundle and the one that ended last, none for a broker.
    ``assessment`` is the last one of the cluster, None if there is none yet.
    """

    explanation: Explanation
    tasks: Sequence[TaskDocument]
    assessment: Assessment | None
    leader: str
    epoch: int
    at_ms: int
    last_round: int
    last_round_at_ms: int
    in_force: InForce
    balancing: Balancing


class Tasks(Resource, tag="decisions"):
    @operation(
        "GET /admin/v2/loadmanager/tasks", Reply(200, "The tasks.", TasksDocument), leader=True
    )
    @abstractmethod
    def tasks(self, query: TasksQuery) -> TasksDocument:
        """List the placements, moves, splits and merges under way, and those that ended last.

        Live tasks are listed first, from the oldest. The last 200 tasks that ended follow, from the
        latest. A new leader follows the orders of its predecessor as tasks of its own.
        """


class Decisions(Tasks, tag="decisions"):
    """Answers for the leader; raises `LeaderElsewhere`, and `Unavailable` while none leads."""

    def __init__(self, context: Context, leading: Leadership, cluster: str) -> None:
        self._context = context
        self._leading = leading
        self._cluster = cluster

    @operation(
        "GET /admin/v2/loadmanager/snapshot",
        Reply(200, "The snapshot, which `loadmanager decide` reads.", dict[str, Any]),
        leader=True,
    )
    async def snapshot(self) -> bytes:
        """Get the cluster as the leader sees it, as one document.

        The format is described in `docs/snapshot-format.md`.
        """
        look = self._leading.require_term().look()
        if not look.view.brokers.names:
            raise Unavailable("no broker has a load report yet")
        snapshot = self._snapshot_of(look)
        # Encoding a large cluster takes seconds; the snapshot is immutable. During a split, owners
        # and boundaries may briefly be inconsistent.
        return await asyncio.to_thread(
            lambda: encode_snapshot(agreed(snapshot, lambda _what, _expected: None))
        )

    @operation(
        "GET /admin/v2/loadmanager/explain",
        Reply(200, "The explanation.", dict[str, Any]),
        Reply(404, "The leader has no bundle or broker of that name."),
        Reply(412, "The subject is not the name of a bundle or a broker."),
        leader=True,
    )
    def explain(self, query: ExplainQuery) -> dict[str, Any]:
        """Explain why a bundle or a broker is where it is."""
        return explanation_to_json(self.account(query.subject))

    def account(self, subject: str) -> Account:
        """Raises `InvalidName`, or `Missing`: the leader has no such bundle or broker."""
        leader_term = self._leading.require_term()
        look = leader_term.look()
        if subject in look.quarantined:
            raise Missing(
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

    @operation(
        "GET /admin/v2/loadmanager/optimality",
        Reply(200, "The figures.", AssessmentDocument),
        leader=True,
    )
    def optimality(self) -> AssessmentDocument:
        """Get how far the cluster was from the best possible balance at the leader's last round.

        The bound is proven: no assignment of the present bundles to the present brokers is below
        it. The metrics `loadmanager_optimality_*` have the same figures.
        """
        last = self._leading.require_term().optimality_watch.last
        return AssessmentDocument(optimality=assessment_document(last))

    @operation(
        "GET /admin/v2/loadmanager/shadows",
        Reply(200, "The strategies of `[shedding] shadows`.", ShadowsDocument),
        leader=True,
    )
    def shadows(self) -> ShadowsDocument:
        """Compare the strategies of `[shedding] shadows` with the active one.

        Each strategy decides on the same views as the active one and moves nothing. The figures
        begin with the leader's term.
        """
        leader_term = self._leading.require_term()
        active = type(leader_term.look().planner.shedder).__name__
        return shadows_document(active, leader_term.optimality_watch.shadows)

    @operation(
        "GET /admin/v2/loadmanager/decisions",
        Reply(200, "The decisions.", dict[str, Any]),
        leader=True,
    )
    def decisions(self, query: DecisionsQuery) -> dict[str, Any]:
        """List the last decisions of the leader, newest first.

        The list holds every move, and every bundle or round that was left alone, of this leader's
        term, at most the last 2000. `next` is null on the last page. With `subject`, what a round
        found of each broker is listed as well.
        """
        listed = self.listed(query)
        more = listed[-1].number if len(listed) == query.limit else None
        return {"decisions": [decision_to_json(one) for one in listed], "next": more}

    def listed(self, query: DecisionsQuery) -> Sequence[Decision]:
        every = self._leading.require_term().decision_log.decisions(query.subject)
        return self._with_tasks(query.of(every))

    def tasks(self, query: TasksQuery) -> TasksDocument:
        controller = self._leading.require_term().tasks
        return tasks_document(
            (*controller.tasks, *reversed(controller.ended)),
            query,
            leader=self._context.identity.broker,
            epoch=controller.tasks.epoch,
            at_ms=self._context.clock.wall_ms(),
            now_s=self._context.clock.monotonic_s(),
        )

    def _with_tasks(self, decisions: Sequence[Decision]) -> Sequence[Decision]:
        controller = self._leading.require_term().tasks
        states = {task.number: task.state for task in (*controller.ended, *controller.tasks)}
        return [replace(one, task_state=states.get(one.task)) for one in decisions]

    def _tasks_of(self, bundle: str) -> list[TaskDocument]:
        listed = self.tasks(TasksQuery(limit=2, bundle=bundle)).tasks
        return listed if listed and listed[0].live else listed[:1]

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


def _running(view: ClusterView) -> dict[BrokerId, Running]:
    brokers = view.brokers
    rows = zip(brokers.names, brokers.load_ema.tolist(), brokers.bytes_ema.tolist(), strict=True)
    return {
        name: Running(load, bytes_per_s)
        for name, load, bytes_per_s in rows
        if np.isfinite(load) and np.isfinite(bytes_per_s)
    }


def _explained(known: Known, subject: str, decisions: Sequence[Decision]) -> Explanation:
    if "/" in subject:
        bundle = parse_bundle(subject)
        if not decisions and known.view.bundles.row(bundle) is None:
            raise Missing(f"{bundle}: no broker reports it and nothing was decided about it")
        return explain_bundle(known, bundle, decisions)
    try:
        broker = parse_broker(subject)
    except InvalidName:
        expected = "a broker, host:port, or a bundle, tenant/namespace/0xLLLLLLLL_0xUUUUUUUU"
        raise InvalidName("subject", subject, expected) from None
    if broker not in known.view.brokers.index:
        raise Missing(f"{broker}: no such broker is registered")
    return explain_broker(known, broker, decisions)


def explanation_to_json(account: Account) -> dict[str, Any]:
    story = account.explanation
    return {
        **_named(account, "leader epoch at_ms last_round last_round_at_ms"),
        **_named(story, "subject kind owner target msgs_per_s bytes_per_s bundles"),
        "scores": {"own": story.score, **_named(story, "mean highest lowest")},
        "decisions": [decision_to_json(one) for one in story.decisions],
        "tasks": account.tasks,
        "optimality": assessment_document(account.assessment),
        "grounds": [
            {"about": one.subject, **_named(one, "reason detail"), **_in_words(one.reason)}
            for one in story.grounds
        ],
        "weighing": story.weighing
        and {
            **_named(story.weighing, "level lasting"),
            "uses": _in_camel_case(story.weighing.uses),
            "costs": _in_camel_case(story.weighing.costs),
        },
        "candidates": [
            {**_in_camel_case(one), "meaning": "" if one.refused is None else one.refused.meaning}
            for one in story.candidates
        ],
        "inForce": in_force_to_json(account.in_force),
        "balancing": BalancingState.model_validate(account.balancing),
    }


def decision_to_json(decision: Decision) -> dict[str, Any]:
    task = {"number": decision.task, "state": decision.task_state}
    return {
        **_named(decision, "at_ms epoch round subject kind outcome code detail"),
        **_named(decision, "source target number"),
        **_in_words(decision.code),
        "task": task if decision.task else None,
    }


def _in_camel_case(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_in_camel_case(one) for one in value]
    if not is_dataclass(value):
        return value
    return {to_camel(one.name): _in_camel_case(getattr(value, one.name)) for one in fields(value)}


def _named(value: object, names: str) -> dict[str, Any]:
    return {to_camel(name): getattr(value, name) for name in names.split()}


def _in_words(code: Cause | Reason) -> dict[str, str]:
    return {"meaning": code.meaning, "takes": code.takes}


class PlanQuery(Query):
    """What a plan is computed with, in place of what is in force."""

    shedder: str = ""
    """The shedding strategy, by the load manager's name or Pulsar's; by default the active one."""
    placement: str = ""
    """The placement strategy, by the load manager's name or Pulsar's; by default the active one."""
    mode: Literal["", "safe", "parity"] = ""
    """The mode of the planner; by default the one in force."""
    settings: tuple[str, ...] = Field(default_factory=tuple, alias="set")
    """A setting `key=value`, as of `loadmanager decide --set`. The parameter may be repeated."""
    seed: Whole = Field(0, ge=0, le=2**31)
    """The seed of strategies that draw random numbers."""
    limit: Whole = Field(1_000, ge=1, le=_MOST)
    """The largest number of refusals to list."""


class PlannedMove(Document):
    """A bundle that would move."""

    bundle: str
    source: str | None
    target: str
    cause: Cause

    @computed_field
    def meaning(self) -> str:
        """The cause in words."""
        return self.cause.meaning


class PlannedRefusal(Document):
    """A bundle or broker that is left alone, with the reason; an empty subject is the round."""

    subject: str
    reason: Reason
    detail: str

    @computed_field
    def meaning(self) -> str:
        """The reason in words."""
        return self.reason.meaning

    @computed_field
    def takes(self) -> str:
        """What would have to change for the subject to be moved."""
        return self.reason.takes


class PlanDocument(Document):
    """The plan of a round."""

    epoch: int
    moves: list[PlannedMove]
    refusals: list[PlannedRefusal]
    refusals_in_all: int
    optimality: OptimalityDocument | None
    """How far the cluster is from the best possible balance now; null if it is not known."""
    with_moves: OptimalityDocument | None
    """The predicted distance from the best possible balance after all moves; null if not known."""
    in_force: dict[str, Any]
    balancing: BalancingState


def _previewed(planner: Planner, look: Observation, wish: PlanQuery) -> PlanDocument:
    view, rng = look.view, np.random.default_rng(wish.seed)
    plan = Playback(planner, rng, look.memory).round(view)
    moves = [*plan.moves, *plan.observed]
    return PlanDocument.model_validate(
        {
            "epoch": look.epoch,
            "moves": moves,
            "refusals": plan.refusals[: wish.limit],
            "refusals_in_all": len(plan.refusals),
            "optimality": planner.optimality(view, plan.memory),
            "with_moves": planner.optimality(view, plan.memory, moves),
            "in_force": in_force_to_json(in_force(planner)),
            "balancing": look.balancing,
        }
    )


class Plans(Resource, tag="decisions"):
    def __init__(self, leading: Leadership) -> None:
        self._leading = leading

    @operation(
        "GET /admin/v2/loadmanager/plan",
        Reply(
            200, "The moves, and the bundles and brokers left alone with the reasons.", PlanDocument
        ),
        Reply(412, "A strategy or a setting does not exist, or a value is not valid."),
        leader=True,
    )
    async def plan(self, query: PlanQuery) -> PlanDocument:
        """Compute what the next round, or another strategy, would do now.

        The plan is computed from the present view of the leader and is not carried out. It is what
        an active leader would do; `balancing` has the mode of this leader.
        """
        look = self._leading.require_term().look()
        if not look.view.brokers.names:
            raise Unavailable("no broker has a load report yet")
        planner = look.planner
        wanted = Wanted(
            shedder=query.shedder or None,
            placement=query.placement or None,
            mode=query.mode or None,
            settings=query.settings,
        )
        if wanted != Wanted():
            try:
                planner = planner_for("the leader", in_force(planner), wanted)
            except ConfigError as error:
                raise Unfit("; ".join(error.faults).replace("--set ", "set=")) from error
        # View and memory are immutable, and the leader's own generator is not used.
        return await asyncio.to_thread(_previewed, planner, look, query)
