"""An in-process coordination service with ZooKeeper's semantics, for tests and simulation."""

from tests.testbed.memory.client import MemoryCoordination
from tests.testbed.memory.service import MemoryService

__all__ = ["MemoryCoordination", "MemoryService"]
