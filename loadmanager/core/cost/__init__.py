"""Models of the cost of serving a bundle."""

from loadmanager.core.cost.document import CostDocument
from loadmanager.core.cost.learned import LearnedCost
from loadmanager.core.cost.traffic_share import CostModel, TrafficShare

__all__ = ["CostDocument", "CostModel", "LearnedCost", "TrafficShare"]
