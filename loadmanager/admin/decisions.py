from typing import Any, Final, Literal

from pydantic import Field

from loadmanager.adapters.http.operations import Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query, Whole
from loadmanager.admin.balancing import BalancingState
from loadmanager.admin.optimality import (
    AssessmentDocument,
    PaybackDocument,
    ShadowsDocument,
    WeighingDocument,
    assessment_document,
    shadows_document,
)
from loadmanager.admin.tasks import TasksDocument, TasksQuery, tasks_document
from loadmanager.core.candidates import Candidate
from loadmanager.core.explaining import Decision
from loadmanager.core.joint.weighing import Payback, Weighing
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.reason_texts import REASONS, sentence
from loadmanager.core.snapshot.encoding import in_force_to_json
from loadmanager.leader.explain import Explainer
from loadmanager.ports.leading import Account, DecisionFilter, TaskFilter

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
        "grounds": [_ground_to_json(one) for one in story.grounds],
        "weighing": _weighing(story.weighing),
        "candidates": [_candidate_to_json(one) for one in story.candidates],
        "inForce": in_force_to_json(account.in_force),
        "balancing": BalancingState.model_validate(account.balancing),
    }


def decision_to_json(decision: Decision) -> dict[str, Any]:
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
        "task": _task(decision),
    }


def _task(decision: Decision) -> dict[str, Any] | None:
    state = decision.task_state
    if not decision.task:
        return None
    return {"number": decision.task, "state": None if state is None else state.value}


def _ground_to_json(ground: Refusal) -> dict[str, Any]:
    return {
        "about": ground.subject,
        "reason": ground.reason.value,
        "meaning": sentence(ground.reason),
        "takes": _takes(ground.reason),
        "detail": ground.detail,
    }


def _candidate_to_json(candidate: Candidate) -> dict[str, Any]:
    refused = candidate.refused
    return {
        "broker": candidate.broker,
        "score": candidate.score,
        "scoreWith": candidate.score_with,
        "refused": None if refused is None else refused.value,
        "meaning": "" if refused is None else sentence(refused),
        "payback": _payback(candidate.payback),
    }


def _weighing(found: Weighing | None) -> WeighingDocument | None:
    return None if found is None else WeighingDocument.model_validate(found)


def _payback(found: Payback | None) -> PaybackDocument | None:
    return None if found is None else PaybackDocument.model_validate(found)


def _takes(code: object) -> str:
    return REASONS[code].remedy if isinstance(code, Reason) else ""
