from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.core.planner import Planner
from loadmanager.core.report import ReportRules
from loadmanager.core.splitting.finder import SplitRules
from loadmanager.core.splitting.positions import SplitLimits
from loadmanager.ports.host import Clock

_NAP_S: Final = 2.0
_NOTHING_S: Final = 1e-6
_LOST_AFTER_S: Final = 15.0
_LOST_AFTER_ROUNDS: Final = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often the leader samples the averages, and how often it runs rounds.

    ``return_wait_s`` is how long it waits for brokers that vanished together.
    """

    tick_interval_s: float
    round_interval_s: float
    return_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPolicy:
    enabled: bool
    rules: SplitRules
    algorithm: str
    most_per_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskBounds:
    """How many tasks may be in flight, and how long an order may wait.

    Drains and rounds may have ``most_per_broker`` tasks under way with one broker. An order that is
    not carried out counts as lost ``lost_after_s`` after it was written.
    """

    most_per_broker: int
    lost_after_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeValues:
    """All runtime settings at one time.

    ``shadows`` are the strategies that decide beside the planner's, by their classes;
    ``report_rules`` say when a report is due.
    """

    planner: Planner
    shadows: Mapping[str, Planner]
    rhythm: Rhythm
    split_policy: SplitPolicy
    split_limits: SplitLimits
    report_rules: ReportRules
    sample_interval_s: float
    lookup_wait_s: float
    drain_deadline_s: float

    @property
    def task_bounds(self) -> TaskBounds:
        return TaskBounds(
            most_per_broker=max(self.planner.settings.in_flight_per_broker, 1),
            lost_after_s=min(_LOST_AFTER_S, _LOST_AFTER_ROUNDS * self.rhythm.round_interval_s),
        )


class RuntimeSettings:
    def __init__(self, tuned: RuntimeValues) -> None:
        self.now = tuned


async def wait_out(
    clock: Clock, interval_s: Callable[[], float], nap: Callable[[float], Awaitable[object]]
) -> None:
    """Return when ``interval_s`` has passed, as long as that is by then.

    A wait of an hour that is made a minute ends within seconds. ``nap``
    waits for so many seconds at most; when it returns True the wait is over.
    """
    begun_s = clock.monotonic_s()
    while (left_s := begun_s + interval_s() - clock.monotonic_s()) > _NOTHING_S:
        if await nap(min(left_s, _NAP_S)):
            return
