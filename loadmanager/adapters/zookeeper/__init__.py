from loadmanager.adapters.zookeeper.link import ZooKeeperCoordination
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions, zookeeper_options

__all__ = ["ZooKeeperCoordination", "ZooKeeperOptions", "zookeeper_options"]
