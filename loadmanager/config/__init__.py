from loadmanager.config.balancing import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
    SplitSettings,
)
from loadmanager.config.deployment import (
    BrokerSettings,
    HostSettings,
)
from loadmanager.config.describe import annotated_toml, describe
from loadmanager.config.errors import ConfigError
from loadmanager.config.load import load_config
from loadmanager.config.model import Config

__all__ = [
    "BrokerSettings",
    "Config",
    "ConfigError",
    "HostSettings",
    "LeaderSettings",
    "PlacementSettings",
    "PlannerSettings",
    "ReportSettings",
    "SheddingSettings",
    "SplitSettings",
    "annotated_toml",
    "describe",
    "load_config",
]
