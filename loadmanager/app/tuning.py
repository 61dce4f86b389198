"""What may change while the sidecar runs, as it is now."""

from dataclasses import dataclass

from loadmanager.core.planner import Planner
from loadmanager.core.report import ReportRules
from loadmanager.core.splitting import SplitLimits, SplitRules


@dataclass(frozen=True, slots=True, kw_only=True)
class Rhythm:
    """How often the leader samples the averages, and how often it looks for moves.

    ``return_wait_s`` is for how long it waits for brokers that vanished together.
    """

    tick_interval_s: float
    round_interval_s: float
    return_wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPolicy:
    """Whether, when and how bundles are split by themselves."""

    enabled: bool
    rules: SplitRules
    algorithm: str
    most_per_round: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """All of it at one moment. ``report_rules`` say when a report is due."""

    planner: Planner
    rhythm: Rhythm
    split_policy: SplitPolicy
    split_limits: SplitLimits
    report_rules: ReportRules
    sample_interval_s: float
    lookup_wait_s: float
    drain_deadline_s: float


class Tuning:
    """Holds what is so now. Who decides by it looks here each time, and keeps no copy."""

    def __init__(self, tuned: Tuned) -> None:
        self.now = tuned
