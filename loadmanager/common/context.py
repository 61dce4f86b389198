from dataclasses import dataclass, field

from loadmanager.common.cluster_conditions import TopicHash
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.identity import Identity
from loadmanager.common.liveness import Liveness
from loadmanager.common.oversized import OversizedWrites
from loadmanager.common.unexpected import UnexpectedErrors
from loadmanager.ports.broker import BrokerControl
from loadmanager.ports.coordination import Coordination
from loadmanager.ports.history import HistorySink, NoHistory, NoSeed, SeedSource
from loadmanager.ports.host import Clock, Computing, ComputingInline
from loadmanager.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    identity: Identity
    coordination: Coordination
    cluster_state: ClusterState
    broker: BrokerControl
    clock: Clock
    metrics: Metrics
    topic_hash: TopicHash = field(default_factory=TopicHash)
    history: HistorySink = field(default_factory=NoHistory)
    seeds: SeedSource = field(default_factory=NoSeed)
    computing: Computing = field(default_factory=ComputingInline)
    troubles: dict[str, str] = field(default_factory=dict)
    """Problems that readiness names besides, by what has them."""
    liveness: Liveness = field(init=False)
    unexpected: UnexpectedErrors = field(init=False)
    oversized: OversizedWrites = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "liveness", Liveness(self.clock.monotonic_s))
        object.__setattr__(self, "unexpected", UnexpectedErrors(self.clock, self.metrics))
        object.__setattr__(self, "oversized", OversizedWrites(self.clock, self.metrics))
