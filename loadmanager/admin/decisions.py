from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from pydantic import Field, computed_field

from loadmanager.adapters.http.live.page import OVERVIEW_PATH
from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query, Whole
from loadmanager.admin.brokers import BalancingState
from loadmanager.admin.documents import (
    AssessmentDocument,
    OptimalityDocument,
    PaybackDocument,
    ShadowsDocument,
    TaskDocument,
    TasksDocument,
    TasksQuery,
    WeighingDocument,
    assessment_document,
    shadows_document,
    tasks_document,
)
from loadmanager.core.candidates import Candidate
from loadmanager.core.explaining import Decision
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.reason_texts import REASONS, sentence
from loadmanager.core.snapshot.encoding import in_force_to_json
from loadmanager.leader.explain import Explainer
from loadmanager.ports.leading import Account, DecisionFilter, PlanOverrides, Preview, TaskFilter
from loadmanager.ports.overview import Overview, RefusalCount

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
    outcome: Literal["", "moved", "observed", "placed", "left_alone"] = ""
    """Lists only decisions with this outcome."""
    round: Whole = Field(0, ge=0, le=2**62)
    """Lists only decisions of this round; 0 lists all."""


class Decisions(Resource, tag="decisions"):
    def __init__(self, leader_term: Explainer) -> None:
        self._leader_term = leader_term

    @operation(
        "GET",
        "/admin/v2/loadmanager/snapshot",
        Reply(200, "The snapshot, which `loadmanager decide` reads.", dict[str, Any]),
        leader=True,
    )
    async def snapshot(self) -> bytes:
        """Get the cluster as the leader sees it, as one document.

        The format is described in `docs/snapshot-format.md`.
        """
        return await self._leader_term.snapshot()

    @operation(
        "GET",
        "/admin/v2/loadmanager/explain",
        Reply(200, "The explanation.", dict[str, Any]),
        Reply(404, "The leader has no bundle or broker of that name."),
        Reply(412, "The subject is not the name of a bundle or a broker."),
        leader=True,
    )
    async def explain(self, query: ExplainQuery) -> dict[str, Any]:
        """Explain why a bundle or a broker is where it is."""
        return explanation_to_json(self._leader_term.explain(query.subject))

    @operation(
        "GET",
        "/admin/v2/loadmanager/optimality",
        Reply(200, "The figures.", AssessmentDocument),
        leader=True,
    )
    async def optimality(self) -> AssessmentDocument:
        """Get how far the cluster was from the best possible balance at the leader's last round.

        The bound is proven: no assignment of the present bundles to the present brokers is below
        it. The metrics `loadmanager_optimality_*` have the same figures.
        """
        return AssessmentDocument(optimality=assessment_document(self._leader_term.assessment()))

    @operation(
        "GET",
        "/admin/v2/loadmanager/shadows",
        Reply(200, "The strategies of `[shedding] shadows`.", ShadowsDocument),
        leader=True,
    )
    async def shadows(self) -> ShadowsDocument:
        """Compare the strategies of `[shedding] shadows` with the active one.

        Each strategy decides on the same views as the active one and moves nothing. The figures
        begin with the leader's term.
        """
        return shadows_document(self._leader_term.shadows())

    @operation(
        "GET",
        "/admin/v2/loadmanager/decisions",
        Reply(200, "The decisions.", dict[str, Any]),
        leader=True,
    )
    async def decisions(self, query: DecisionsQuery) -> dict[str, Any]:
        """List the last decisions of the leader, newest first.

        The list holds every move, and every bundle or round that was left alone, of this leader's
        term, at most the last 2000. `next` is null on the last page. With `subject`, what a round
        found of each broker is listed as well.
        """
        listed = self._leader_term.decisions(DecisionFilter(**query.model_dump()))
        more = listed[-1].number if len(listed) == query.limit else None
        return {"decisions": [decision_to_json(one) for one in listed], "next": more}

    @operation(
        "GET",
        "/admin/v2/loadmanager/tasks",
        Reply(200, "The tasks.", TasksDocument),
        leader=True,
    )
    async def tasks(self, query: TasksQuery) -> TasksDocument:
        """List the placements, moves, splits and merges under way, and those that ended last.

        Live tasks are listed first, from the oldest. The last 200 tasks that ended follow, from the
        latest. A new leader follows the orders of its predecessor as tasks of its own.
        """
        return tasks_document(self._leader_term.tasks(TaskFilter(**query.model_dump())))


def explanation_to_json(account: Account) -> dict[str, Any]:
    story = account.explanation
    return {
        "subject": story.subject,
        "kind": story.kind,
        "leader": account.leader,
        "epoch": account.epoch,
        "atMs": account.at_ms,
        "lastRound": account.last_round,
        "lastRoundAtMs": account.last_round_at_ms,
        "owner": story.owner,
        "target": story.target,
        "msgsPerS": story.msgs_per_s,
        "bytesPerS": story.bytes_per_s,
        "bundles": story.bundles,
        "scores": {
            "own": story.score,
            "mean": story.mean,
            "highest": story.highest,
            "lowest": story.lowest,
        },
        "decisions": [decision_to_json(one) for one in story.decisions],
        "tasks": tasks_document(account.tasks).tasks,
        "optimality": assessment_document(account.assessment),
        "grounds": [
            {
                "about": one.subject,
                "reason": one.reason.value,
                "meaning": sentence(one.reason),
                "takes": _takes(one.reason),
                "detail": one.detail,
            }
            for one in story.grounds
        ],
        "weighing": story.weighing and WeighingDocument.model_validate(story.weighing),
        "candidates": [_candidate_to_json(one) for one in story.candidates],
        "inForce": in_force_to_json(account.in_force),
        "balancing": BalancingState.model_validate(account.balancing),
    }


def decision_to_json(decision: Decision) -> dict[str, Any]:
    state = decision.task_state
    return {
        "atMs": decision.at_ms,
        "epoch": decision.epoch,
        "round": decision.round,
        "subject": decision.subject,
        "kind": decision.kind.value,
        "outcome": decision.outcome.value,
        "code": decision.code.value,
        "meaning": sentence(decision.code),
        "takes": _takes(decision.code),
        "detail": decision.detail,
        "source": decision.source,
        "target": decision.target,
        "number": decision.number,
        "task": {"number": decision.task, "state": state and state.value}
        if decision.task
        else None,
    }


def _candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    refused = candidate.refused
    return {
        "broker": candidate.broker,
        "score": candidate.score,
        "scoreWith": candidate.score_with,
        "refused": None if refused is None else refused.value,
        "meaning": "" if refused is None else sentence(refused),
        "payback": candidate.payback and PaybackDocument.model_validate(candidate.payback),
    }


def _takes(code: object) -> str:
    return REASONS[code].remedy if isinstance(code, Reason) else ""


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
        return sentence(self.cause)


class PlannedRefusal(Document):
    """A bundle or broker that is left alone, with the reason; an empty subject is the round."""

    subject: str
    reason: Reason
    detail: str

    @computed_field
    def meaning(self) -> str:
        """The reason in words."""
        return sentence(self.reason)

    @computed_field
    def takes(self) -> str:
        """What would have to change for the subject to be moved."""
        return REASONS[self.reason].remedy


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


class Plans(Resource, tag="decisions"):
    def __init__(self, plan: Callable[[PlanOverrides], Awaitable[Preview]]) -> None:
        self._plan = plan

    @operation(
        "GET",
        "/admin/v2/loadmanager/plan",
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
        preview = await self._plan(PlanOverrides(**query.model_dump(exclude={"limit"})))
        plan = preview.plan
        return PlanDocument.model_validate(
            {
                "epoch": preview.epoch,
                "moves": [*plan.moves, *plan.observed],
                "refusals": plan.refusals[: query.limit],
                "refusals_in_all": len(plan.refusals),
                "optimality": preview.optimality,
                "with_moves": preview.with_moves,
                "in_force": in_force_to_json(preview.in_force),
                "balancing": preview.balancing,
            }
        )


class BrokerDocument(Document):
    """One broker. Fractions are of the limit of the resource, and null if it is not known."""

    broker: str
    cpu_fraction: float | None
    memory_fraction: float | None
    bandwidth_in_fraction: float | None
    bandwidth_out_fraction: float | None
    largest_fraction: float | None
    """The largest of these fractions except memory, which does not move with bundles."""
    bundles: int
    topics: int
    msgs_per_s: float
    bytes_per_s: float
    draining: bool
    healthy: bool
    report_age_s: float


class ResourceDocument(Document):
    """The use of one resource by all brokers. `broker` uses the largest fraction of its limit."""

    resource: str
    mean_fraction: float
    highest_fraction: float
    broker: str


class MissingDocument(Document):
    """A broker that is absent or publishes no load report."""

    broker: str
    why: str
    since_ms: int | None


class GainDocument(Document):
    """The largest use of a resource at the source of a task, as a fraction of its limit."""

    before: float
    expected: float
    """The use expected after the task, computed from the bundle's share of the source's traffic."""
    after: float | None
    """The use in the source's first report after the task; null before that report."""


class GainedTask(TaskDocument):
    """A bundle task and its effect on the source."""

    gain: GainDocument | None


class RefusalDocument(Document):
    """A reason for which the last round left bundles or brokers alone, with an example."""

    reason: str
    count: int
    meaning: str
    takes: str
    subject: str
    """A bundle or broker as an example; empty for the whole round."""
    detail: str


class OverviewDocument(Document):
    """A cluster at a glance. All lists are bounded."""

    cluster: str
    leader: str
    epoch: int
    since_ms: int
    """The time when the term of the leader began, in milliseconds since 1970."""
    at_ms: int
    measure: Literal["use", "rate"]
    """What is balanced: `use` of CPU and network, or the message `rate` divided by its mean."""
    held: str
    """The reason why no bundle may move now; empty if bundles may move."""
    actions: list[str]
    """The actions that can be requested of the cluster."""
    balancing: BalancingState
    course: list[tuple[int, float, float, float]]
    """The rounds of the last hour. Each entry has the time in milliseconds since 1970, the gap, the
    largest use and the lower bound."""
    brokers: list[BrokerDocument]
    """The brokers with the least capacity left, the fullest one first."""
    brokers_in_all: int
    resources: list[ResourceDocument]
    bundles: int
    unowned: int
    missing: list[MissingDocument]
    tasks: list[GainedTask]
    refusals: list[RefusalDocument]
    decisions: list[dict[str, Any]]


class Overviews(Resource, tag="decisions"):
    def __init__(self, overview: Callable[[], Overview]) -> None:
        self._overview = overview

    @operation("GET", OVERVIEW_PATH, Reply(200, "The overview.", OverviewDocument), leader=True)
    async def overview(self) -> OverviewDocument:
        """Get the cluster at a glance, as the live page shows it.

        The request is cheap for clusters of any size: it lists at most 200 brokers, and the last 60
        tasks and decisions.
        """
        return overview_document(self._overview())


def overview_document(overview: Overview) -> OverviewDocument:
    gains = {number: GainDocument.model_validate(gain) for number, gain in overview.gains.items()}
    alike = {name: getattr(overview, name) for name in OverviewDocument.model_fields}
    other = {
        "course": [(one.at_ms, one.gap, one.largest, one.bound) for one in overview.course],
        "tasks": [
            GainedTask(**dict(one), gain=gains.get(one.number))
            for one in tasks_document(overview.tasks).tasks
        ],
        "refusals": [_refusal(one) for one in overview.refusals],
        "decisions": [decision_to_json(one) for one in overview.decisions],
    }
    return OverviewDocument.model_validate({**alike, **other})


def _refusal(one: RefusalCount) -> RefusalDocument:
    return RefusalDocument(
        reason=one.reason.value,
        count=one.count,
        meaning=sentence(one.reason),
        takes=REASONS[one.reason].remedy,
        subject=one.subject,
        detail=one.detail,
    )
