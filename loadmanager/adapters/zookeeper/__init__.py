"""The `Coordination` port on ZooKeeper, and an embedded ZooKeeper for demo and tests."""

from loadmanager.adapters.zookeeper.link import ZooKeeperCoordination
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions

__all__ = ["ZooKeeperCoordination", "ZooKeeperOptions"]
