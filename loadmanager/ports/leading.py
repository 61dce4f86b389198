from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from loadmanager.core.balancing import Balancing
from loadmanager.core.bundle_task import BundleTask
from loadmanager.core.explaining import Decision, Explanation
from loadmanager.core.optimality import Optimality
from loadmanager.core.planner import Plan
from loadmanager.core.shadow import Shadow
from loadmanager.core.snapshot.document import InForce
from loadmanager.ports.lookup import LookupRefused


class LeaderElsewhere(LookupRefused):
    """Another sidecar leads, at ``sidecar_url``."""

    def __init__(self, sidecar_url: str) -> None:
        super().__init__(f"the leader's sidecar is {sidecar_url}")
        self.sidecar_url = sidecar_url


class SubjectUnknown(LookupRefused):
    """The leader has no broker and no bundle of that name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOverrides:
    """What a plan is computed with instead of what is in force; "" and empty keep that.

    ``settings`` are texts ``key=value``, as `loadmanager decide --set` takes them. ``seed``
    is for the draws of strategies that draw.
    """

    shedder: str = ""
    placement: str = ""
    mode: str = ""
    settings: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The plan of a round now, and what it was computed with.

    ``balancing`` is what the leader may do by itself now; the plan is what it would do
    if it were active. ``optimality`` is how far the cluster is from the best possible now,
    ``with_moves`` the same with the moves of the plan: None where nothing is known.
    """

    plan: Plan
    optimality: Optimality | None
    with_moves: Optimality | None
    epoch: int
    in_force: InForce
    balancing: Balancing


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionFilter:
    """At most ``limit`` decisions that match all fields.

    ``before`` leaves out that number and all later ones, 0 none: the last number of one
    page is what the next page is before. ``broker`` is either end of a move, ``namespace``
    that of the bundle. ``kinds`` empty and ``round`` 0 are any.
    """

    limit: int
    before: int = 0
    subject: str = ""
    broker: str = ""
    namespace: str = ""
    kinds: Collection[str] = ()
    since_ms: int = 0
    outcome: str = ""
    round: int = 0

    def wants(self, one: Decision) -> bool:
        return (
            (not self.before or one.number < self.before)
            and (not self.subject or self.subject in {one.subject, one.source, one.target})
            and (not self.broker or self.broker in {one.source, one.target})
            and (not self.namespace or one.subject.startswith(f"{self.namespace}/"))
            and (not self.kinds or one.kind in self.kinds)
            and one.at_ms >= self.since_ms
            and (not self.outcome or one.outcome == self.outcome)
            and (not self.round or one.round == self.round)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """A filter of bundle tasks: at most ``limit``, of those that match all fields.

    ``namespace`` is that of the bundles, ``broker`` the source or the target. ``live``
    leaves out those that have ended. What is empty fits any.
    """

    limit: int
    states: Collection[str] = ()
    kinds: Collection[str] = ()
    bundle: str = ""
    namespace: str = ""
    broker: str = ""
    live: bool = False

    def wants(self, task: BundleTask) -> bool:
        return (
            not (self.live and task.state.ended)
            and (not self.states or task.state in self.states)
            and (not self.kinds or task.kind in self.kinds)
            and (not self.bundle or self.bundle in task.bundles)
            and (not self.namespace or task.bundle.startswith(f"{self.namespace}/"))
            and (not self.broker or self.broker in {task.source, task.target})
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskList:
    """Bundle tasks of the leader of ``epoch``, at one moment of its two clocks.

    ``tasks`` are those that match, live ones first; ``found`` counts all that match.
    """

    tasks: Sequence[BundleTask]
    found: int
    leader: str
    epoch: int
    at_ms: int
    now_s: float

    def age_s(self, task: BundleTask) -> float:
        """Return the seconds since a task was proposed, up to its end if it has ended."""
        return (self.now_s if task.ended_at_s is None else task.ended_at_s) - task.proposed_at_s

    @overload
    def wall_ms(self, then_s: float) -> int: ...

    @overload
    def wall_ms(self, then_s: float | None) -> int | None: ...

    def wall_ms(self, then_s: float | None) -> int | None:
        return None if then_s is None else self.at_ms - round(1000 * (self.now_s - then_s))


@dataclass(frozen=True, slots=True)
class Assessment:
    """How far the cluster was from the best possible at a round of the leader's term."""

    optimality: Optimality
    round: int
    at_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowList:
    """The strategies beside the ``active`` one, by the names of their classes."""

    active: str
    shadows: Mapping[str, Shadow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """An explanation by the leader of ``epoch``, at ``at_ms``.

    ``last_round`` and ``last_round_at_ms`` are 0 before the first round of the epoch.
    ``tasks`` are the live task of a bundle and the one that ended last, none for a broker.
    ``assessment`` is the last one of the cluster, None if there is none yet.
    """

    explanation: Explanation
    tasks: TaskList
    assessment: Assessment | None
    leader: str
    epoch: int
    at_ms: int
    last_round: int
    last_round_at_ms: int
    in_force: InForce
    balancing: Balancing
