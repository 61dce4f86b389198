from loadmanager.adapters.zookeeper.link import ZooKeeperCoordination
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions

__all__ = ["ZooKeeperCoordination", "ZooKeeperOptions"]
