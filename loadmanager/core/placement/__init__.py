from collections.abc import Mapping
from typing import Final

from loadmanager.core.placement.avg_shedder import PlannedPlacement
from loadmanager.core.placement.contract import Placement, Ranking, Watching, choose
from loadmanager.core.placement.joint import JointPlacement
from loadmanager.core.placement.least_long_term_message_rate import LeastLongTermMessageRate
from loadmanager.core.placement.least_resource_usage_with_weight import (
    LeastAverageUsage,
    LeastResourceUsageWithWeight,
)
from loadmanager.core.placement.round_robin import RoundRobin

_MODULAR: Final = "org.apache.pulsar.broker.loadbalance.impl"
_EXTENSIBLE: Final = "org.apache.pulsar.broker.loadbalance.extensions.strategy"

PLACEMENTS: Final[Mapping[str, type[Placement]]] = {
    "least_long_term_message_rate": LeastLongTermMessageRate,
    "LeastLongTermMessageRate": LeastLongTermMessageRate,
    f"{_MODULAR}.LeastLongTermMessageRate": LeastLongTermMessageRate,
    "least_resource_usage_with_weight": LeastResourceUsageWithWeight,
    "LeastResourceUsageWithWeight": LeastResourceUsageWithWeight,
    f"{_MODULAR}.LeastResourceUsageWithWeight": LeastResourceUsageWithWeight,
    "least_average_usage": LeastAverageUsage,
    f"{_EXTENSIBLE}.LeastResourceUsageWithWeight": LeastAverageUsage,
    "avg": PlannedPlacement,
    "AvgShedder": PlannedPlacement,
    f"{_MODULAR}.AvgShedder": PlannedPlacement,
    "round_robin": RoundRobin,
    "RoundRobinBrokerSelector": RoundRobin,
    f"{_MODULAR}.RoundRobinBrokerSelector": RoundRobin,
    "joint": JointPlacement,
}
"""Each strategy by our short name, Pulsar's class name, and that with its package."""

__all__ = [
    "PLACEMENTS",
    "JointPlacement",
    "LeastAverageUsage",
    "LeastLongTermMessageRate",
    "LeastResourceUsageWithWeight",
    "Placement",
    "PlannedPlacement",
    "Ranking",
    "RoundRobin",
    "Watching",
    "choose",
]
