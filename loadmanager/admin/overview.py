from collections.abc import Callable
from typing import Any, Literal

from loadmanager.adapters.http.live.feed import OVERVIEW_PATH
from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.admin.balancing import BalancingState
from loadmanager.admin.decisions import decision_to_json
from loadmanager.admin.tasks import TaskDocument, tasks_document
from loadmanager.core.reason_texts import REASONS, sentence
from loadmanager.ports.overview import Overview, RefusalCount


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


class Overviews(Resource, tag="decisions"):
    def __init__(self, overview: Callable[[], Overview]) -> None:
        self._overview = overview

    @operation("GET", OVERVIEW_PATH, Reply(200, "The overview.", OverviewDocument), leader=True)
    async def overview(self) -> OverviewDocument:
        """Get the cluster at a glance, as the live page shows it.

        The request is cheap for clusters of any size: it lists at most 200 brokers, and the last 60
        tasks and decisions.
        """
        return overview_document(self._overview())


def overview_document(overview: Overview) -> OverviewDocument:
    gains = {number: GainDocument.model_validate(gain) for number, gain in overview.gains.items()}
    alike = {name: getattr(overview, name) for name in OverviewDocument.model_fields}
    other = {
        "course": [(one.at_ms, one.gap, one.largest, one.bound) for one in overview.course],
        "tasks": [
            GainedTask(**dict(one), gain=gains.get(one.number))
            for one in tasks_document(overview.tasks).tasks
        ],
        "refusals": [_refusal(one) for one in overview.refusals],
        "decisions": [decision_to_json(one) for one in overview.decisions],
    }
    return OverviewDocument.model_validate({**alike, **other})


def _refusal(one: RefusalCount) -> RefusalDocument:
    return RefusalDocument(
        reason=one.reason.value,
        count=one.count,
        meaning=sentence(one.reason),
        takes=REASONS[one.reason].remedy,
        subject=one.subject,
        detail=one.detail,
    )
