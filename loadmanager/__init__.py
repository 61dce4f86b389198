"""A load manager that runs as a sidecar beside every topic broker."""

from importlib.metadata import version

__version__ = version("loadmanager")
