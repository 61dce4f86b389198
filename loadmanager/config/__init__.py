from loadmanager.config.describe import annotated_toml, describe
from loadmanager.config.forms import ConfigError
from loadmanager.config.load import load_config
from loadmanager.config.model import Config

__all__ = ["Config", "ConfigError", "annotated_toml", "describe", "load_config"]
