from collections.abc import Awaitable, Callable
from typing import Any, Final, Literal

from pydantic import Field, computed_field

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query, Whole
from loadmanager.admin.balancing import BalancingState
from loadmanager.admin.optimality import OptimalityDocument
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.reason_texts import REASONS, sentence
from loadmanager.core.snapshot.encoding import in_force_to_json
from loadmanager.ports.leading import PlanOverrides, Preview

_MOST: Final = 10_000


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
