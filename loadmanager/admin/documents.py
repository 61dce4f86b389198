from collections.abc import Iterable, Mapping
from typing import Final, Literal

from pydantic import Field

from loadmanager.adapters.http.operations import Document, Flag, Query, Whole
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.shadow import Shadow
from loadmanager.leader.decisions import Assessment


class OptimalityDocument(Document):
    """How far the cluster is from the best possible balance. All figures are fractions."""

    largest: float
    """The largest use of CPU or network of any broker, as a fraction of its limit."""
    bound: float
    """A proven lower bound of `largest`, for any assignment of the bundles to the brokers."""
    bound_within_policies: float
    """A proven lower bound for all assignments that isolation policies and drains allow."""
    gap: float
    """The difference of `largest` and `bound`, divided by `bound`."""
    gap_within_policies: float
    """The difference of `largest` and `boundWithinPolicies`, divided by the latter."""
    excess: float
    """The mean over all brokers of how far each is above the level at which the load is even,
    divided by that level."""


class RoundOptimality(OptimalityDocument):
    """How far the cluster was from the best possible balance at a round of the leader."""

    round: int
    """The number of the round, from 1 in each epoch."""
    at_ms: int
    """The time of the round, in milliseconds since 1970."""


class AssessmentDocument(Document):
    """How far the cluster was from the best possible balance at the leader's last round."""

    optimality: RoundOptimality | None
    """The figures of the last round; null before the first round."""


def assessment_document(assessment: Assessment | None) -> RoundOptimality | None:
    if assessment is None:
        return None
    found = OptimalityDocument.model_validate(assessment.optimality)
    return RoundOptimality(**dict(found), round=assessment.round, at_ms=assessment.at_ms)


class ShadowDocument(Document):
    """What a shadow strategy would have done. Means and sums are over at most 60 last rounds."""

    strategy: str
    """The name of the strategy's class."""
    rounds: int
    """The number of rounds that the means and sums are over."""
    gap: float | None
    """The gap of the last round: how far the fullest broker would be above the proven lower bound,
    divided by the bound. Null before the first round."""
    mean_gap: float
    """The mean gap of the rounds."""
    regret: float
    """The mean gap of the cluster minus `meanGap`. It is negative if the active strategy is closer
    to the best."""
    moves: int
    """The number of bundles that the strategy would have moved for their load."""
    moved: float
    """The traffic of these bundles, as a fraction of all traffic."""
    active_moves: int
    """The number of bundles that the active strategy moved for their load."""
    active_moved: float
    """The traffic of the bundles of `activeMoves`, as a fraction of all traffic."""


class ShadowsDocument(Document):
    """The shadow strategies beside the active one."""

    active: str
    """The name of the active strategy's class."""
    shadows: list[ShadowDocument]


def shadows_document(active: str, beside: Mapping[str, Shadow]) -> ShadowsDocument:
    shadows = [
        ShadowDocument(
            strategy=strategy,
            rounds=len(shadow.rounds),
            gap=shadow.rounds[-1].gap if shadow.rounds else None,
            mean_gap=shadow.gap,
            regret=shadow.regret,
            moves=shadow.moves,
            moved=shadow.moved,
            active_moves=sum(one.active_moves for one in shadow.rounds),
            active_moved=sum(one.active_moved for one in shadow.rounds),
        )
        for strategy, shadow in beside.items()
    ]
    return ShadowsDocument(active=active, shadows=shadows)


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

    def wants(self, task: BundleTask) -> bool:
        return (
            not (self.live and task.state.ended)
            and (not self.states or task.state in self.states)
            and (not self.kinds or task.kind in self.kinds)
            and (not self.bundle or self.bundle in task.bundles)
            and (not self.namespace or task.bundle.startswith(f"{self.namespace}/"))
            and (not self.broker or self.broker in {task.source, task.target})
        )


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


def tasks_document(
    tasks: Iterable[BundleTask],
    query: TasksQuery,
    *,
    leader: str,
    epoch: int,
    at_ms: int,
    now_s: float,
) -> TasksDocument:
    """Return the tasks asked for as they are at one moment of the leader's two clocks."""
    wanted = [task for task in tasks if query.wants(task)]
    listed = [_document(task, at_ms, now_s) for task in wanted[: query.limit]]
    return TasksDocument(leader=leader, epoch=epoch, at_ms=at_ms, found=len(wanted), tasks=listed)


def _document(task: BundleTask, at_ms: int, now_s: float) -> TaskDocument:
    def wall_ms(then_s: float | None) -> int | None:
        return None if then_s is None else at_ms - round(1000 * (now_s - then_s))

    steps = ("proposed", "ordered", "attempted", "released", "ended")
    times = {f"{step}_at_ms": wall_ms(getattr(task, f"{step}_at_s")) for step in steps}
    alike = ("number", "source", "target", "attempts", "note")
    return TaskDocument(
        **{name: getattr(task, name) for name in alike},
        **times,
        kind=task.kind.value,
        bundles=list(task.bundles),
        cause=task.cause.value,
        meaning=task.cause.meaning,
        asked_by=task.asked_by.word,
        state=task.state.value,
        live=not task.state.ended,
        age_s=(now_s if task.ended_at_s is None else task.ended_at_s) - task.proposed_at_s,
        seen_before_ms=wall_ms(task.pause and task.pause.seen_before_s),
        seen_after_ms=wall_ms(task.pause and task.pause.seen_after_s),
        influence=task.influence and Influence.model_validate(task.influence),
    )
