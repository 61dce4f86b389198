"""The plan of a round, computed and not carried out."""

from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from aiohttp import web
from pydantic import Field, computed_field

from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query, Whole
from loadmanager.adapters.http.replies import json_reply
from loadmanager.admin.optimality import OptimalityDocument
from loadmanager.admin.steering import BalancingState
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.reason_texts import REASONS, sentence
from loadmanager.core.snapshot import in_force_to_json
from loadmanager.ports import Preview, PreviewWish

_MOST: Final = 10_000


class PlanQuery(Query):
    """What a plan is computed with, instead of what is in force."""

    shedder: str = ""
    """Another shedding strategy, by the load manager's name or Pulsar's."""
    placement: str = ""
    """Another placement strategy, likewise."""
    mode: Literal["", "safe", "parity"] = ""
    """Another mode of the planner."""
    settings: list[str] = Field(default_factory=list, alias="set")
    """Settings `key=value`, as `loadmanager decide --set` takes them; repeatable."""
    seed: Whole = Field(0, ge=0, le=2**31)
    """For strategies that draw."""
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
    """What is left alone, and the reason; an empty subject is the whole round."""

    subject: str
    reason: Reason
    detail: str

    @computed_field
    def meaning(self) -> str:
        """The reason in words."""
        return sentence(self.reason)

    @computed_field
    def takes(self) -> str:
        """What it would take to move the subject all the same."""
        return REASONS[self.reason].remedy


class PlanDocument(Document):
    """The plan of a round."""

    epoch: int
    moves: list[PlannedMove]
    refusals: list[PlannedRefusal]
    refusals_in_all: int
    optimality: OptimalityDocument | None
    """How far the cluster is from the best possible now; null if unknown."""
    with_moves: OptimalityDocument | None
    """The same once all moves are made, as predicted."""
    in_force: dict[str, Any]
    balancing: BalancingState


class Plans(Resource, tag="decisions"):
    """Answers ``GET /admin/v2/loadmanager/plan``."""

    def __init__(self, plan: Callable[[PreviewWish], Awaitable[Preview]]) -> None:
        self._plan = plan

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
        active leader: `balancing` is True if this one is.
        """
        query: PlanQuery = call.query
        wish = PreviewWish(
            shedder=query.shedder,
            placement=query.placement,
            mode=query.mode,
            settings=tuple(query.settings),
            seed=query.seed,
        )
        preview = await self._plan(wish)
        plan = preview.plan
        document = PlanDocument.model_validate(
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
        return json_reply(document)
