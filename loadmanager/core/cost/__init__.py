"""What a bundle costs the broker that serves it: models, the default one first."""

from loadmanager.core.cost.document import CostDocument
from loadmanager.core.cost.learned import LearnedCost
from loadmanager.core.cost.traffic_share import CostModel, TrafficShare

__all__ = ["CostDocument", "CostModel", "LearnedCost", "TrafficShare"]
