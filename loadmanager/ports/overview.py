from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from loadmanager.core.balance_course import BalancePoint
from loadmanager.core.balancing import Balancing
from loadmanager.core.explaining import Decision
from loadmanager.core.ids import BrokerId
from loadmanager.core.plan import Reason
from loadmanager.ports.leading import TaskList

Measure = Literal["use", "rate"]
"""What is balanced: the use of CPU and network, or message rates divided by their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerUse:
    """One broker. Fractions are of the limit of the resource, None if it is not known."""

    broker: BrokerId
    cpu_fraction: float | None = None
    memory_fraction: float | None = None
    bandwidth_in_fraction: float | None = None
    bandwidth_out_fraction: float | None = None
    bundles: int = 0
    topics: int = 0
    msgs_per_s: float = 0.0
    bytes_per_s: float = 0.0
    draining: bool = False
    healthy: bool = True
    report_age_s: float = 0.0

    @property
    def uses(self) -> Mapping[str, float]:
        """The known fractions of the resources whose use moves with bundles; memory does not."""
        every = {
            "cpu": self.cpu_fraction,
            "network in": self.bandwidth_in_fraction,
            "network out": self.bandwidth_out_fraction,
        }
        return {name: fraction for name, fraction in every.items() if fraction is not None}

    @property
    def largest_fraction(self) -> float | None:
        return max(self.uses.values(), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceUse:
    """The use of one resource by all brokers; ``broker`` uses the largest fraction."""

    resource: str
    mean_fraction: float
    highest_fraction: float
    broker: BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBroker:
    """A broker that is absent or publishes no load report; ``since_ms`` is None if unknown."""

    broker: BrokerId
    why: str
    since_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGain:
    """The effect of a task: the largest use of its source before, and as expected after it.

    ``after`` is what the source's first report after the end of the task says, None before
    that: other moves and changes of traffic count in it.
    """

    before: float
    expected: float
    after: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCount:
    """The number of bundles and brokers left alone for one reason, with an example."""

    reason: Reason
    count: int
    subject: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """A cluster at one time, on the wall clock of the one that balances it.

    ``brokers`` are the scarcest, of ``brokers_in_all``. ``held`` says why nothing may move now,
    "" if it may. ``actions`` are those that this cluster can be asked for, besides questions.
    """

    cluster: str
    leader: str
    epoch: int
    since_ms: int
    at_ms: int
    measure: Measure
    balancing: Balancing
    course: Sequence[BalancePoint]
    brokers: Sequence[BrokerUse]
    brokers_in_all: int
    resources: Sequence[ResourceUse]
    bundles: int
    unowned: int
    missing: Sequence[MissingBroker]
    tasks: TaskList
    refusals: Sequence[RefusalCount]
    decisions: Sequence[Decision]
    gains: Mapping[int, TaskGain] = field(default_factory=dict)
    held: str = ""
    actions: tuple[str, ...] = ()
