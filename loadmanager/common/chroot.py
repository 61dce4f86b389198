from collections.abc import Collection
from typing import Final

from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.fields import OURS, parse_fields
from loadmanager.ports.coordination import (
    Coordination,
    CoordinationError,
    Disconnected,
    Node,
    SessionLost,
)

LEDGERS: Final = "/managed-ledgers"
"""Where Pulsar keeps its managed ledgers; no node of ours has this path."""


class ChrootRefused(LoadManagerError):
    """The nodes below the chroot belong to something else, or the cluster's are elsewhere."""


async def refuse_nodes_of_others(coordination: Coordination, default_chroot: str) -> None:
    """Raise unless this cluster may keep its nodes in the chroot.

    Args:
        coordination: a session below the chroot.
        default_chroot: the chroot if it is the default one, empty if it was configured.
            A cluster of version 0.1 kept its nodes at the root by default.

    Raises `ChrootRefused`: Pulsar uses these paths, or the root has a cluster of version 0.1;
    `CoordinationError`: ZooKeeper could not be read.
    """
    if await _exists(coordination, LEDGERS):
        raise _of_pulsar(f"{LEDGERS} exists in it")
    names = _names(znodes.LEADER, await coordination.get(znodes.LEADER))
    if "serviceUrl" in names and OURS not in names:
        raise _of_pulsar(f"{znodes.LEADER} in it was written by a Pulsar broker")
    if not default_chroot or await coordination.get(znodes.CLUSTER) is not None:
        return
    try:
        node = await coordination.get_from_root(znodes.CLUSTER)
    except (Disconnected, SessionLost):
        raise
    except CoordinationError:
        return  # Not readable with this login, so no sidecar of this cluster wrote it.
    if "hash" in _names(znodes.CLUSTER, node):
        raise ChrootRefused(
            f"[zookeeper] chroot is not set, which means {default_chroot}, and there is a cluster "
            f"of version 0.1 at ZooKeeper's root ({znodes.CLUSTER}). To keep it, set "
            '[zookeeper] chroot = "/". To begin a new cluster, without the namespaces and '
            "policies of the old one, stop all sidecars of the old one and set [zookeeper] "
            f'chroot = "{default_chroot}"'
        )


async def _exists(coordination: Coordination, path: str) -> bool:
    try:
        return await coordination.get(path) is not None
    except (Disconnected, SessionLost):
        raise
    except CoordinationError:
        return True  # Access is denied only to a node that exists.


def _names(path: str, node: Node | None) -> Collection[str]:
    """Return the names of a node's fields, none if it has no content that can be read."""
    try:
        return parse_fields(path, node.data).names() if node else ()
    except MalformedContent:
        return ()


def _of_pulsar(why: str) -> ChrootRefused:
    return ChrootRefused(
        f"the [zookeeper] chroot is that of a Pulsar cluster: {why}. Both would change the same "
        "nodes; expected a path of its own, such as the default, /loadmanager/{[cluster] name}"
    )
