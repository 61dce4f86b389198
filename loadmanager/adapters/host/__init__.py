"""What the broker's host, container or process tree uses."""

from loadmanager.adapters.host.probe import PsutilHostProbe

__all__ = ["PsutilHostProbe"]
