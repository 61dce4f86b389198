from loadmanager.adapters.zookeeper.options import ZooKeeperOptions, zookeeper_options
from loadmanager.adapters.zookeeper.session import ZooKeeperCoordination

__all__ = ["ZooKeeperCoordination", "ZooKeeperOptions", "zookeeper_options"]
