"""The `Coordination` port on ZooKeeper."""

from loadmanager.adapters.coordination.client import LinkedCoordination
from loadmanager.adapters.zookeeper.link import KazooLink
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions


class ZooKeeperCoordination(LinkedCoordination):
    """One ZooKeeper session; connects until it succeeds, whatever happens in between.

    A link that no longer answers shows as SUSPENDED within half the session timeout.
    LOST shows only when a server says so, that is after a reconnect: whoever must stop
    before its locks go to others counts from its own last successful `heartbeat`.
    """

    def __init__(self, options: ZooKeeperOptions) -> None:
        super().__init__(
            KazooLink(options), chroot=options.chroot, timeout_s=options.session_timeout_s
        )
