from loadmanager.config.describe import annotated_toml, describe
from loadmanager.config.forms import ConfigError
from loadmanager.config.load import load_config
from loadmanager.config.model import Config
from loadmanager.config.sections import (
    BrokerSettings,
    HostSettings,
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
    SplitSettings,
)

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
