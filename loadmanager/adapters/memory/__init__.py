"""An in-process coordination service with ZooKeeper's semantics, for tests and simulation."""

from loadmanager.adapters.memory.client import MemoryCoordination
from loadmanager.adapters.memory.service import MemoryService

__all__ = ["MemoryCoordination", "MemoryService"]
