"""Settings from a TOML file, the environment and the command line, checked whole at the start."""

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
    ClusterSettings,
    HostSettings,
    HttpSettings,
    LogSettings,
    SidecarSettings,
    ZookeeperSettings,
)
from loadmanager.config.describe import KeyDescription, annotated_toml, describe
from loadmanager.config.errors import ConfigError
from loadmanager.config.load import load_config
from loadmanager.config.model import Config
from loadmanager.config.serving import LookupSettings, OwnershipSettings

__all__ = [
    "BrokerSettings",
    "ClusterSettings",
    "Config",
    "ConfigError",
    "HostSettings",
    "HttpSettings",
    "KeyDescription",
    "LeaderSettings",
    "LogSettings",
    "LookupSettings",
    "OwnershipSettings",
    "PlacementSettings",
    "PlannerSettings",
    "ReportSettings",
    "SheddingSettings",
    "SidecarSettings",
    "SplitSettings",
    "ZookeeperSettings",
    "annotated_toml",
    "describe",
    "load_config",
]
