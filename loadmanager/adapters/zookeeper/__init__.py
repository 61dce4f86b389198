"""The `Coordination` port on a real ZooKeeper, and a ZooKeeper to try it on."""

from loadmanager.adapters.zookeeper.link import ZooKeeperCoordination
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions

__all__ = ["ZooKeeperCoordination", "ZooKeeperOptions"]
