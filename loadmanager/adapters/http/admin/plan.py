"""What a round would do now, told and not done."""

from typing import Any, Final, Literal

from aiohttp import web
from pydantic import BaseModel, Field

from loadmanager.adapters.http.admin.optimality import OptimalityDocument, optimality_to_json
from loadmanager.adapters.http.admin.steering import BalancingState, balancing_to_json
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query, Whole
from loadmanager.adapters.http.replies import json_reply
from loadmanager.core.plan import Move, Refusal
from loadmanager.core.reason_texts import REASONS, sentence
from loadmanager.core.snapshot import in_force_to_json
from loadmanager.ports import Preview, PreviewService, PreviewWish

_MOST: Final = 10_000


class PlanQuery(Query):
    """What a plan is computed with, instead of what is in force."""

    shedder: str = Field(
        "", description="Another shedding strategy, by the load manager's name or Pulsar's."
    )
    placement: str = Field("", description="Another placement strategy, likewise.")
    mode: Literal["", "safe", "parity"] = Field("", description="Another mode of the planner.")
    settings: list[str] = Field(
        default_factory=list,
        alias="set",
        description="Settings `key=value`, as `loadmanager decide --set` takes them; repeatable.",
    )
    seed: Whole = Field(0, ge=0, le=2**31, description="For strategies that draw.")
    limit: Whole = Field(
        1_000, ge=1, le=_MOST, description="The largest number of refusals to list."
    )


class PlannedMove(BaseModel):
    """A bundle that would move."""

    bundle: str
    source: str | None
    target: str
    cause: str
    meaning: str


class PlannedRefusal(BaseModel):
    """What is left alone, and the reason; an empty subject is the whole round."""

    subject: str
    reason: str
    meaning: str
    takes: str
    detail: str


class PlanDocument(BaseModel):
    """The plan of a round."""

    epoch: int
    moves: list[PlannedMove]
    refusals: list[PlannedRefusal]
    refusals_in_all: int = Field(serialization_alias="refusalsInAll")
    optimality: OptimalityDocument | None = Field(
        description="How far the cluster is from the best possible now; null if unknown."
    )
    with_moves: OptimalityDocument | None = Field(
        serialization_alias="withMoves",
        description="The same once all moves are made, as predicted.",
    )
    in_force: dict[str, Any] = Field(serialization_alias="inForce")
    balancing: BalancingState


class Plans(Resource, tag="decisions"):
    """Answers ``GET /admin/v2/loadmanager/plan``."""

    def __init__(self, service: PreviewService) -> None:
        self._service = service

    @operation(
        "GET",
        "/admin/v2/loadmanager/plan",
        Reply(200, "The moves, and what is left alone with the reasons.", PlanDocument),
        Reply(412, "A strategy or a setting does not exist, or a value is not valid."),
        query=PlanQuery,
        leader=True,
    )
    async def plan(self, call: Call) -> web.StreamResponse:
        """Compute what the next round, or another strategy, would do now.

        The plan is computed on what the leader sees now and is not carried out. It is that of an
        active leader: `balancing` says whether this one is.
        """
        query: PlanQuery = call.query
        wish = PreviewWish(
            shedder=query.shedder,
            placement=query.placement,
            mode=query.mode,
            settings=tuple(query.settings),
            seed=query.seed,
        )
        return json_reply(preview_to_json(await self._service.plan(wish), query.limit))


def preview_to_json(preview: Preview, limit: int = _MOST) -> dict[str, Any]:
    """Return a preview as a JSON object, with at most ``limit`` refusals."""
    plan = preview.plan
    return {
        "epoch": preview.epoch,
        "moves": [_move_to_json(one) for one in (*plan.moves, *plan.observed)],
        "refusals": [_refusal_to_json(one) for one in plan.refusals[:limit]],
        "refusalsInAll": len(plan.refusals),
        "optimality": optimality_to_json(preview.optimality),
        "withMoves": optimality_to_json(preview.with_moves),
        "inForce": in_force_to_json(preview.in_force),
        "balancing": balancing_to_json(preview.balancing),
    }


def _move_to_json(move: Move) -> dict[str, Any]:
    return {
        "bundle": move.bundle,
        "source": move.source,
        "target": move.target,
        "cause": move.cause.value,
        "meaning": sentence(move.cause),
    }


def _refusal_to_json(refusal: Refusal) -> dict[str, Any]:
    return {
        "subject": refusal.subject,
        "reason": refusal.reason.value,
        "meaning": sentence(refusal.reason),
        "takes": REASONS[refusal.reason].takes,
        "detail": refusal.detail,
    }
