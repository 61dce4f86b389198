"""The cluster at a glance, as the live page shows it: of a leader of sidecars, or of ``attach``."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal

from loadmanager.adapters.http.live.page import OVERVIEW_PATH
from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.admin.brokers import BalancingState
from loadmanager.admin.decisions import Decisions, DecisionsQuery, decision_to_json
from loadmanager.admin.documents import TaskDocument, TasksDocument, TasksQuery
from loadmanager.common.context import Context
from loadmanager.core.balancing import Balancing
from loadmanager.core.explaining import Decision
from loadmanager.core.load_tracker import BrokerLoad
from loadmanager.core.optimality import BalancePoint, last_hour
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY
from loadmanager.leader.records import TaskGain
from loadmanager.leader.term import Leadership, LeaderTerm

MOST_BROKERS: Final = 200
MOST_TASKS: Final = 60
MOST_DECISIONS: Final = 60
MOST_MISSING: Final = 50
_MOST_REFUSALS: Final = 12
_MOST_POINTS: Final = 240
_STEERING: Final = ("explain", "pause", "observe", "resume", "unload")
BROKER_ACTIONS: Final = ("drain", "undrain", "cordon", "uncordon")
_SPLIT: Final = "split"
# The resources whose use moves with bundles; memory does not.
_MOVING: Final = {
    "cpu": "cpu_fraction",
    "network in": "bandwidth_in_fraction",
    "network out": "bandwidth_out_fraction",
}


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
    cordoned: bool
    """Whether the broker takes no bundles, and is not emptied."""
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


def broker_document(broker: str, **known: Any) -> BrokerDocument:
    fields = {**dict.fromkeys(BrokerDocument.model_fields), **_USUAL, **known}
    moving = [fields[name] for name in _MOVING.values() if fields[name] is not None]
    fields |= {"broker": broker, "largest_fraction": max(moving, default=None)}
    return BrokerDocument(**fields)


_USUAL: Final = {
    **dict.fromkeys(("bundles", "topics", "msgs_per_s", "bytes_per_s", "report_age_s"), 0),
    "draining": False,
    "cordoned": False,
    "healthy": True,
}


def gained(
    tasks: TasksDocument, gains: Mapping[int, TaskGain] = MappingProxyType({})
) -> list[GainedTask]:
    return [
        GainedTask(
            **dict(one),
            gain=GainDocument.model_validate(gain) if (gain := gains.get(one.number)) else None,
        )
        for one in tasks.tasks
    ]


def scarcest_first(brokers: Iterable[BrokerDocument]) -> list[BrokerDocument]:
    return sorted(
        brokers, key=lambda one: (-(one.largest_fraction or 0.0), -one.bytes_per_s, one.broker)
    )


def overview_document(
    brokers: Iterable[BrokerDocument],
    tasks: TasksDocument,
    gains: Mapping[int, TaskGain] = MappingProxyType({}),
    *,
    decisions: Iterable[Decision],
    course: Iterable[BalancePoint],
    balancing: Balancing,
    **known: Any,
) -> OverviewDocument:
    ordered = scarcest_first(brokers)
    return OverviewDocument(
        leader=tasks.leader,
        epoch=tasks.epoch,
        at_ms=tasks.at_ms,
        balancing=BalancingState.model_validate(balancing),
        course=[(one.at_ms, one.gap, one.largest, one.bound) for one in course],
        brokers=ordered[:MOST_BROKERS],
        brokers_in_all=len(ordered),
        resources=resources_of(ordered),
        tasks=gained(tasks, gains),
        decisions=[decision_to_json(one) for one in decisions],
        **known,
    )


def resources_of(brokers: Sequence[BrokerDocument]) -> list[ResourceDocument]:
    found = []
    for resource, name in _MOVING.items():
        uses = {one.broker: use for one in brokers if (use := getattr(one, name)) is not None}
        if uses:
            highest = max(uses, key=uses.__getitem__)
            found.append(
                ResourceDocument(
                    resource=resource,
                    mean_fraction=sum(uses.values()) / len(uses),
                    highest_fraction=uses[highest],
                    broker=highest,
                )
            )
    return sorted(found, key=lambda one: -one.highest_fraction)


def most_refused(refusals: Iterable[Refusal]) -> list[RefusalDocument]:
    counts: Counter[Reason] = Counter()
    examples: dict[Reason, Refusal] = {}
    for one in refusals:
        counts[one.reason] += 1
        examples.setdefault(one.reason, one)
    return [
        RefusalDocument(
            reason=reason.value,
            count=count,
            meaning=reason.meaning,
            takes=reason.takes,
            subject=examples[reason].subject,
            detail=examples[reason].detail,
        )
        for reason, count in counts.most_common(_MOST_REFUSALS)
    ]


class Overviews(Resource, tag="decisions"):
    @operation(f"GET {OVERVIEW_PATH}", Reply(200, "The overview.", OverviewDocument), leader=True)
    @abstractmethod
    def overview(self) -> OverviewDocument:
        """Get the cluster at a glance, as the live page shows it.

        The request is cheap for clusters of any size: it lists at most 200 brokers, and the last 60
        tasks and decisions.
        """


@dataclass(slots=True, eq=False)
class OverviewRequests(Overviews):
    context: Context
    leading: Leadership
    explainer: Decisions
    cluster: str
    splits: bool = True
    _refused: tuple[tuple[int, int], list[RefusalDocument]] = field(
        default=((0, 0), []), init=False
    )

    def overview(self) -> OverviewDocument:
        term = self.leading.require_term()
        tasks = self.explainer.tasks(TasksQuery(limit=MOST_TASKS))
        now_s, at_ms = self.context.clock.monotonic_s(), tasks.at_ms
        return overview_document(
            self._brokers(term, now_s),
            tasks,
            term.gains.updated(),
            decisions=self.explainer.listed(DecisionsQuery(limit=MOST_DECISIONS)),
            course=last_hour(term.optimality_watch.course, at_ms, _MOST_POINTS),
            cluster=self.cluster,
            since_ms=term.began_at_ms,
            measure="use",
            held="",
            balancing=term.steering.balancing,
            bundles=len(self.context.cluster_state.owners),
            unowned=len(term.placement_worker.unowned),
            missing=list(self._missing(term, at_ms, now_s))[:MOST_MISSING],
            refusals=self._refusals(term, tasks.epoch),
            actions=[*_STEERING, *BROKER_ACTIONS, *([_SPLIT] if self.splits else [])],
        )

    def _brokers(self, term: LeaderTerm, now_s: float) -> Iterator[BrokerDocument]:
        reports = self.context.cluster_state.loads.reports
        for broker, load in term.tracker.loads.items():
            known = reports.get(broker)
            yield broker_document(
                broker,
                cpu_fraction=_fraction(load, CPU),
                memory_fraction=_fraction(load, MEMORY),
                bandwidth_in_fraction=_fraction(load, BANDWIDTH_IN),
                bandwidth_out_fraction=_fraction(load, BANDWIDTH_OUT),
                bundles=len(load.listing.names),
                topics=load.topics,
                msgs_per_s=load.totals.msgs_per_s,
                bytes_per_s=load.totals.bytes_per_s,
                draining=load.draining,
                cordoned=not (load.persistent or load.draining),
                healthy=known is None or known.report.healthy,
                report_age_s=max(now_s - load.seen_s, 0.0),
            )

    def _missing(self, term: LeaderTerm, at_ms: int, now_s: float) -> Iterator[MissingDocument]:
        registered, reported = self.context.cluster_state.brokers, term.tracker.brokers
        for broker, left_s in sorted(term.tracker.departed_at_s.items(), key=lambda one: -one[1]):
            if broker not in registered:
                since_ms = at_ms - round(1000 * (now_s - left_s))
                yield MissingDocument(broker=broker, why="left, or crashed", since_ms=since_ms)
        for broker in sorted(registered.keys() - reported):
            quarantined = term.quarantined.get(broker)
            why = f"left out of decisions: its report makes them fail ({quarantined})"
            if quarantined is None:
                why = "registered, and has reported no load yet"
            yield MissingDocument(broker=broker, why=why, since_ms=None)

    def _refusals(self, term: LeaderTerm, epoch: int) -> list[RefusalDocument]:
        """Count the refusals of the last round, once for all requests."""
        log = term.decision_log
        if self._refused[0] != (epoch, log.rounds):
            every = (one for refusals in (log.refusals or {}).values() for one in refusals)
            self._refused = ((epoch, log.rounds), most_refused(every))
        return self._refused[1]


def _fraction(load: BrokerLoad, resource: int) -> float | None:
    limit = load.limit[resource]
    return load.usage[resource] / limit if limit > 0 else None
