from typing import Final, Literal

from pydantic import Field

from loadmanager.adapters.http.operations import Document
from loadmanager.adapters.http.parameters import Flag, Query, Whole
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.reason_texts import sentence
from loadmanager.ports.leading import TaskList

_DEFAULT_LIMIT: Final = 100
_MOST: Final = 10_000


class TasksQuery(Query):
    """Which bundle tasks are listed."""

    limit: Whole = Field(_DEFAULT_LIMIT, ge=1, le=_MOST)
    """The largest number of tasks to list."""
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
            "stuck",
            "owned_not_served",
        ]
    ] = Field([], alias="state")
    """Lists only tasks in this state. The last seven are states of tasks that have ended. The
    parameter may be repeated."""
    kinds: list[Literal["place", "move", "split", "merge"]] = Field([], alias="kind")
    """Lists only tasks of this kind. The parameter may be repeated."""
    bundle: str = ""
    """Lists only tasks of this bundle."""
    namespace: str = ""
    """Lists only tasks of bundles of this `tenant/namespace`."""
    broker: str = ""
    """Lists only tasks whose source or target is this broker."""
    live: Flag = False
    """Lists only tasks that have not ended."""


class Influence(Document):
    """The traffic that a task takes from its source to its target."""

    msgs_in_per_s: float
    msgs_out_per_s: float
    bytes_in_per_s: float
    bytes_out_per_s: float


class TaskDocument(Document):
    """One bundle task. Times are in milliseconds since 1970 on the leader's clock."""

    number: int
    """The number of the task in the leader's term, from 1."""
    kind: str
    """The kind of the task: `place`, `move`, `split` or `merge`."""
    bundles: list[str]
    """The bundle of the task, or both halves of a merge."""
    source: str | None
    """The broker that owned the bundle; null if the bundle had no owner."""
    target: str
    """The broker that is to own the bundle, or that carries out the split or merge."""
    cause: str
    """The code of the cause."""
    meaning: str
    """The cause in words."""
    asked_by: str
    """The origin of the task: `unowned`, `people`, `drain`, `reconciliation` or `balancing`."""
    state: str
    """The present state of the task."""
    live: bool
    """Whether the task has not ended."""
    age_s: float
    """The seconds since the task was proposed, up to its end if it has ended."""
    attempts: int
    """The number of times that the order was written."""
    proposed_at_ms: int
    ordered_at_ms: int | None
    """The time when the order was first known to stand; null before that."""
    attempted_at_ms: int | None
    """The time when the order was last written; null if it never was."""
    released_at_ms: int | None
    """The time when the source released the lock; null before that."""
    ended_at_ms: int | None
    """The time when the task ended; null before that."""
    seen_before_ms: int | None
    """The time when the source was last known to serve the topics; null if their traffic was not
    followed."""
    seen_after_ms: int | None
    """The time when most of the topics were first seen active at the target: clients waited at most
    from `seenBeforeMs` until then. Null if their traffic was not followed."""
    influence: Influence | None
    """The traffic that the task moves, as running averages; null if it is not known."""
    note: str
    """The reason why the task ended, as text for people."""


class TasksDocument(Document):
    """Bundle tasks: live tasks, the oldest first, then ended tasks, the latest first."""

    leader: str
    """The broker whose sidecar leads."""
    epoch: int
    """The epoch of the leader's term."""
    at_ms: int
    found: int
    """The number of tasks that match; with a lower `limit` fewer are listed."""
    tasks: list[TaskDocument]


def tasks_document(tasks: TaskList) -> TasksDocument:
    return TasksDocument(
        leader=tasks.leader,
        epoch=tasks.epoch,
        at_ms=tasks.at_ms,
        found=tasks.found,
        tasks=[_document(tasks, task) for task in tasks.tasks],
    )


def _document(tasks: TaskList, task: BundleTask) -> TaskDocument:
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
        age_s=tasks.age_s(task),
        attempts=task.attempts,
        proposed_at_ms=tasks.wall_ms(task.proposed_at_s),
        ordered_at_ms=tasks.wall_ms(task.ordered_at_s),
        attempted_at_ms=tasks.wall_ms(task.attempted_at_s),
        released_at_ms=tasks.wall_ms(task.released_at_s),
        ended_at_ms=tasks.wall_ms(task.ended_at_s),
        seen_before_ms=tasks.wall_ms(task.pause and task.pause.seen_before_s),
        seen_after_ms=tasks.wall_ms(task.pause and task.pause.seen_after_s),
        influence=task.influence and Influence.model_validate(task.influence),
        note=task.note,
    )
