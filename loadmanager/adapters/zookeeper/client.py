"""The `Coordination` port on ZooKeeper."""

from loadmanager.adapters.coordination.client import LinkedCoordination
from loadmanager.adapters.coordination.counted import Observe, counted
from loadmanager.adapters.coordination.link import Link
from loadmanager.adapters.zookeeper.link import KazooLink
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions


class ZooKeeperCoordination(LinkedCoordination):
    """One ZooKeeper session; connects until it succeeds, whatever happens in between.

    A link that no longer answers shows as SUSPENDED within half the session timeout.
    LOST shows only when a server says so, that is after a reconnect: what must stop
    before its locks go to others counts from its own last successful `heartbeat`.
    ``observe`` is called for each request with its kind, result and seconds.
    """

    def __init__(self, options: ZooKeeperOptions, observe: Observe | None = None) -> None:
        link: Link = KazooLink(options)
        super().__init__(
            counted(link, observe) if observe else link,
            chroot=options.chroot,
            timeout_s=options.session_timeout_s,
        )
