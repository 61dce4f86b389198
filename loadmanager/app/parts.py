"""What every part of the application works with, joined once by the wiring."""

from dataclasses import dataclass

from loadmanager.app.identity import Identity
from loadmanager.app.picture import ClusterPicture
from loadmanager.ports import BrokerControl, Clock, Coordination
from loadmanager.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """One sidecar's own name and its doors to the world."""

    identity: Identity
    coordination: Coordination
    picture: ClusterPicture
    broker: BrokerControl
    clock: Clock
    metrics: Metrics
