"""Resource usage of the broker's host, container or process tree."""

from loadmanager.adapters.host.probe import PsutilHostProbe

__all__ = ["PsutilHostProbe"]
