from loadmanager.adapters.host.probe import PsutilHostProbe

__all__ = ["PsutilHostProbe"]
