"""The overview of a cluster as one JSON document: that of sidecars and that of ``attach``."""

from typing import Any, Literal

from aiohttp import web

from loadmanager.adapters.http.live import OVERVIEW_PATH
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.replies import json_reply
from loadmanager.admin.decisions import decision_to_json
from loadmanager.admin.steering import BalancingState
from loadmanager.admin.tasks import TaskDocument, tasks_document
from loadmanager.core.reason_texts import REASONS, sentence
from loadmanager.ports import Overview, OverviewService, RefusalCount


class BrokerDocument(Document):
    """One broker; fractions are of the limit, null where that is not known."""

    broker: str
    cpu_fraction: float | None
    memory_fraction: float | None
    bandwidth_in_fraction: float | None
    bandwidth_out_fraction: float | None
    largest_fraction: float | None
    """The largest of these but for memory, which does not go with bundles."""
    bundles: int
    topics: int
    msgs_per_s: float
    bytes_per_s: float
    draining: bool
    healthy: bool
    report_age_s: float


class ResourceDocument(Document):
    """One resource over all brokers; `broker` uses most of it."""

    resource: str
    mean_fraction: float
    highest_fraction: float
    broker: str


class MissingDocument(Document):
    """A broker that is not there, or reports nothing."""

    broker: str
    why: str
    since_ms: int | None


class GainDocument(Document):
    """The largest use of the source of a task."""

    before: float
    expected: float
    """After the task, by the bundle's share of the source's traffic."""
    after: float | None
    """As the source reported after the task; null before that."""


class GainedTask(TaskDocument):
    """A bundle task and what it brings its source."""

    gain: GainDocument | None


class RefusalDocument(Document):
    """A reason for which the last round left things alone, with an example."""

    reason: str
    count: int
    meaning: str
    takes: str
    subject: str
    """A bundle, a broker, or "" for the whole round."""
    detail: str


class OverviewDocument(Document):
    """A cluster at a glance; all lists are bounded."""

    cluster: str
    leader: str
    epoch: int
    since_ms: int
    """When the term of the leader began."""
    at_ms: int
    measure: Literal["use", "rate"]
    """Whether balance is of the use of CPU and network, or of message rates over their mean."""
    held: str
    """Why nothing may move now, "" if it may."""
    actions: list[str]
    """What the cluster can be asked to do."""
    balancing: BalancingState
    course: list[tuple[int, float, float, float]]
    """Rounds of the last hour: time in milliseconds, gap, largest use, lower bound."""
    brokers: list[BrokerDocument]
    """The brokers with the least left, the scarcest first."""
    brokers_in_all: int
    resources: list[ResourceDocument]
    bundles: int
    unowned: int
    missing: list[MissingDocument]
    tasks: list[GainedTask]
    refusals: list[RefusalDocument]
    decisions: list[dict[str, Any]]


class Overviews(Resource, tag="decisions"):
    """Answers ``GET /admin/v2/loadmanager/overview``."""

    def __init__(self, service: OverviewService) -> None:
        self._service = service

    @operation("GET", OVERVIEW_PATH, Reply(200, "The overview.", OverviewDocument), leader=True)
    async def overview(self, _call: Call) -> web.StreamResponse:
        """Get the cluster at a glance, as the live page shows it.

        It costs little, whatever the size of the cluster: at most 200 brokers are listed, and
        the last 60 tasks and decisions.
        """
        return json_reply(overview_document(self._service.overview()))


def overview_document(overview: Overview) -> OverviewDocument:
    """Return an overview as a document."""
    gains = {number: GainDocument.model_validate(gain) for number, gain in overview.gains.items()}
    return OverviewDocument(
        cluster=overview.cluster,
        leader=overview.leader,
        epoch=overview.epoch,
        since_ms=overview.since_ms,
        at_ms=overview.at_ms,
        measure=overview.measure,
        held=overview.held,
        actions=list(overview.actions),
        balancing=BalancingState.model_validate(overview.balancing),
        course=[(one.at_ms, one.gap, one.largest, one.bound) for one in overview.course],
        brokers=[BrokerDocument.model_validate(one) for one in overview.brokers],
        brokers_in_all=overview.brokers_in_all,
        resources=[ResourceDocument.model_validate(one) for one in overview.resources],
        bundles=overview.bundles,
        unowned=overview.unowned,
        missing=[MissingDocument.model_validate(one) for one in overview.missing],
        tasks=[
            GainedTask(**dict(one), gain=gains.get(one.number))
            for one in tasks_document(overview.tasks).tasks
        ],
        refusals=[_refusal(one) for one in overview.refusals],
        decisions=[decision_to_json(one) for one in overview.decisions],
    )


def _refusal(one: RefusalCount) -> RefusalDocument:
    return RefusalDocument(
        reason=one.reason.value,
        count=one.count,
        meaning=sentence(one.reason),
        takes=REASONS[one.reason].remedy,
        subject=one.subject,
        detail=one.detail,
    )
