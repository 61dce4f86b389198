"""Bundle tasks as JSON: the placements, moves, splits and merges of the leader's term."""

from typing import Any, Final, Literal

from pydantic import BaseModel, Field

from loadmanager.adapters.http.parameters import Flag, Query, Whole
from loadmanager.core.averages import Rates
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.reason_texts import sentence
from loadmanager.ports import TaskList

_DEFAULT_LIMIT: Final = 100
_MOST: Final = 10_000


class TasksQuery(Query):
    """Which bundle tasks are listed."""

    limit: Whole = Field(
        _DEFAULT_LIMIT, ge=1, le=_MOST, description="The largest number of tasks to list."
    )
    states: list[
        Literal[
            "unconfirmed",
            "ordered",
            "released",
            "serving",
            "failed",
            "superseded",
            "timed_out",
            "landed_elsewhere",
        ]
    ] = Field(
        [],
        alias="state",
        description="Lists only tasks in this state. The last five are states of tasks that have "
        "ended. The parameter may be repeated.",
    )
    kinds: list[Literal["place", "move", "split", "merge"]] = Field(
        [],
        alias="kind",
        description="Lists only tasks of this kind. The parameter may be repeated.",
    )
    bundle: str = Field("", description="Lists only tasks of this bundle.")
    namespace: str = Field(
        "", description="Lists only tasks of bundles of this `tenant/namespace`."
    )
    broker: str = Field("", description="Lists only tasks whose source or target is this broker.")
    live: Flag = Field(default=False, description="Lists only tasks that have not ended.")


class Influence(BaseModel):
    """The traffic that a task takes from its source to its target."""

    msgs_in_per_s: float = Field(serialization_alias="msgsInPerS")
    msgs_out_per_s: float = Field(serialization_alias="msgsOutPerS")
    bytes_in_per_s: float = Field(serialization_alias="bytesInPerS")
    bytes_out_per_s: float = Field(serialization_alias="bytesOutPerS")


class TaskDocument(BaseModel):
    """One bundle task; times are in milliseconds on the leader's wall clock."""

    number: int = Field(description="The number of the task in the leader's term, from 1.")
    kind: str = Field(description="What is done: `place`, `move`, `split` or `merge`.")
    bundles: list[str] = Field(description="The bundle, or both halves of a merge.")
    source: str | None = Field(description="The broker that owned the bundle, null for none.")
    target: str = Field(description="The broker that is to own it, or that carries out a split.")
    cause: str = Field(description="The code of the cause.")
    meaning: str = Field(description="The cause in words.")
    asked_by: str = Field(
        serialization_alias="askedBy",
        description="Who proposed it: `unowned`, `people`, `drain`, `reconciliation` or "
        "`balancing`.",
    )
    state: str = Field(description="The present state.")
    live: bool = Field(description="Whether the task has not ended.")
    age_s: float = Field(
        serialization_alias="ageS",
        description="Time since the task was proposed, up to its end if it has ended.",
    )
    attempts: int = Field(description="How often its order was written.")
    proposed_at_ms: int = Field(serialization_alias="proposedAtMs")
    ordered_at_ms: int | None = Field(
        serialization_alias="orderedAtMs", description="Null until the order is known to stand."
    )
    attempted_at_ms: int | None = Field(
        serialization_alias="attemptedAtMs", description="When its order was written last."
    )
    released_at_ms: int | None = Field(
        serialization_alias="releasedAtMs", description="Null until the source released the lock."
    )
    ended_at_ms: int | None = Field(
        serialization_alias="endedAtMs", description="Null until the task has ended."
    )
    influence: Influence | None = Field(
        description="The traffic that it moves, as running averages; null if it is not known."
    )
    note: str = Field(description="Why the task ended, for people.")


class TasksDocument(BaseModel):
    """Bundle tasks: the live ones, oldest first, then those that ended, latest first."""

    leader: str = Field(description="The broker whose sidecar leads.")
    epoch: int = Field(description="The epoch of its term.")
    at_ms: int = Field(serialization_alias="atMs")
    found: int = Field(description="How many tasks fit; more than are listed if `limit` is less.")
    tasks: list[TaskDocument]


def tasks_to_json(told: TaskList) -> dict[str, Any]:
    """Return a list of tasks as a JSON object."""
    return TasksDocument(
        leader=told.leader,
        epoch=told.epoch,
        at_ms=told.at_ms,
        found=told.found,
        tasks=[_document(told, task) for task in told.tasks],
    ).model_dump(by_alias=True)


def _document(told: TaskList, task: BundleTask) -> TaskDocument:
    return TaskDocument(
        number=task.number,
        kind=task.kind.value,
        bundles=list(task.bundles),
        source=task.source,
        target=task.target,
        cause=task.cause.value,
        meaning=sentence(task.cause),
        asked_by=task.asked_by.word,
        state=task.state.value,
        live=not task.state.ended,
        age_s=told.age_s(task),
        attempts=task.attempts,
        proposed_at_ms=told.wall_ms(task.proposed_at_s),
        ordered_at_ms=told.wall_ms(task.ordered_at_s),
        attempted_at_ms=told.wall_ms(task.attempted_at_s),
        released_at_ms=told.wall_ms(task.released_at_s),
        ended_at_ms=told.wall_ms(task.ended_at_s),
        influence=_influence(task.influence),
        note=task.note,
    )


def _influence(rates: Rates | None) -> Influence | None:
    if rates is None:
        return None
    return Influence(
        msgs_in_per_s=rates.msgs_in_per_s,
        msgs_out_per_s=rates.msgs_out_per_s,
        bytes_in_per_s=rates.bytes_in_per_s,
        bytes_out_per_s=rates.bytes_out_per_s,
    )
