"""What all members agree on before they work: whose nodes these are, the hash, the signing key.

The key is stored in ZooKeeper, so every client that can read it there can sign. The first that
needs it makes it; all sidecars watch it, so that a replaced one applies at once, and make it again
when it was deleted.
"""

import secrets
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from loadmanager.common.watching import Subscriptions
from loadmanager.config import Config
from loadmanager.config.model import chroot_of
from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.fields import OURS, parse_fields, to_json
from loadmanager.core.hashing import DEFAULT_HASH, HASH_FUNCTIONS, HashName, position
from loadmanager.core.ids import TopicName
from loadmanager.ports.coordination import (
    CoordinationError,
    Disconnected,
    Node,
    NodeExists,
    SessionLost,
)
from loadmanager.ports.host import Clock
from loadmanager.ports.lookup import Unavailable
from loadmanager.ports.session import Coordination

log = structlog.get_logger()

LEDGERS: Final = "/managed-ledgers"
"""Where Pulsar keeps its managed ledgers; no node of ours has this path."""


class ChrootRefused(LoadManagerError):
    """The nodes below the chroot belong to something else, or the cluster's are elsewhere."""


async def refuse_nodes_of_others(coordination: Coordination, default_chroot: str) -> None:
    """Raise `ChrootRefused` unless this cluster may keep its nodes in the chroot.

    ``default_chroot`` is empty if another was configured: version 0.1 kept its nodes at the root.
    """
    try:
        ledgers = await coordination.get(LEDGERS) is not None
    except (Disconnected, SessionLost):
        raise
    except CoordinationError:
        ledgers = True  # Access is denied only to a node that exists.
    if ledgers:
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


def _names(path: str, node: Node | None) -> Collection[str]:
    try:
        return parse_fields(path, node.data).names() if node else ()
    except MalformedContent:
        return ()


def _of_pulsar(why: str) -> ChrootRefused:
    return ChrootRefused(
        f"the [zookeeper] chroot is that of a Pulsar cluster: {why}. Both would change the same "
        "nodes; expected a path of its own, such as the default, /loadmanager/{[cluster] name}"
    )


FORMAT: Final = 2
"""The format of all nodes of a cluster. Version 0.1 recorded none."""

_COMMANDED: Final = "contract"
"""The kind of brokers if none is recorded."""

OF_ATTACH: Final = "attach"
"""The kind where candidates of ``loadmanager attach`` lead, with whom no sidecar may stand."""

_RETRY_S = 0.5
_LOG_INTERVAL_S = 10.0
_PATIENCE_S = 2.0


class ClusterDisagrees(LoadManagerError):
    """The configuration differs from the cluster's record."""


class TopicHash:
    """The hash function of this cluster, known once `agree` has read it."""

    def __init__(self, name: HashName | None = None) -> None:
        self.name: HashName | None = name

    def position(self, topic: TopicName) -> int:
        """Raises `Unavailable`: the cluster's record has not been read yet."""
        if self.name is None:
            raise Unavailable(f"{znodes.CLUSTER} has not been read yet, which names the hash")
        return position(topic, self.name)


@dataclass(frozen=True, slots=True)
class Conditions:
    """A sidecar's settings that must be equal in the whole cluster.

    ``hash_name`` None stands for the recorded hash, ``default_chroot`` is empty if one is
    configured, and ``kind`` is that of the brokers, empty where it does not matter.
    """

    hash_name: HashName | None = None
    default_chroot: str = ""
    kind: str = ""


def conditions_of(config: Config) -> Conditions:
    chroot = "" if config.zookeeper.chroot else chroot_of(config)
    hash_name = "crc32" if config.broker.kind == "pulsar" else config.cluster.hash
    return Conditions(hash_name, default_chroot=chroot, kind=config.broker.kind)


async def agree(coordination: Coordination, clock: Clock, wanted: Conditions) -> HashName:
    """Return the cluster's hash function once the nodes are seen to be this cluster's.

    It waits for ZooKeeper without a limit. Raises `ClusterDisagrees`: another function or format;
    `ChrootRefused`; `MalformedContent`: the record cannot be read.
    """
    logged_at_s = clock.monotonic_s() - _LOG_INTERVAL_S + _PATIENCE_S
    while True:
        try:
            await refuse_nodes_of_others(coordination, wanted.default_chroot)
            record: dict[str, object] = {"format": FORMAT, "hash": wanted.hash_name or DEFAULT_HASH}
            if wanted.kind not in {"", _COMMANDED}:
                record["kind"] = wanted.kind
            with suppress(NodeExists):
                await coordination.create(znodes.CLUSTER, to_json(record))
                log.info("cluster.record.created", **record)
            node = await coordination.get(znodes.CLUSTER)
            data = None if node is None else node.data
        except CoordinationError as error:
            if clock.monotonic_s() - logged_at_s >= _LOG_INTERVAL_S:
                logged_at_s = clock.monotonic_s()
                log.warning("coordination.service.unavailable", error=str(error))
            await clock.sleep(_RETRY_S)
            continue
        if data is not None:
            return _agreed(data, wanted)


def _agreed(data: bytes, wanted: Conditions) -> HashName:
    configured = wanted.hash_name
    fields = parse_fields(znodes.CLUSTER, data)
    if "format" not in fields.names():
        raise ClusterDisagrees(
            f"{znodes.CLUSTER}: these nodes are of version 0.1, which recorded no format; expected "
            f"format {FORMAT}. Sidecars of both versions cannot work together: stop all, then do "
            "as described in docs/upgrade.md"
        )
    if (found := fields.count("format")) != FORMAT:
        raise ClusterDisagrees(
            f"{znodes.CLUSTER}: these nodes are of format {found}; this version reads and "
            f"writes format {FORMAT}. Use the version that the other sidecars of this cluster have"
        )
    kind = fields.text("kind", _COMMANDED)
    if wanted.kind not in {"", kind}:
        raise ClusterDisagrees(
            f"{znodes.CLUSTER}: this cluster has [broker] kind = {kind!r}, and this is of kind "
            f"{wanted.kind!r} ({OF_ATTACH!r} is loadmanager attach); expected another [zookeeper] "
            "chroot for each kind"
        )
    text = fields.text("hash")
    recorded = next((name for name in HASH_FUNCTIONS if name == text), None)
    if recorded is None:
        raise MalformedContent(znodes.CLUSTER, f"hash = {text!r}", " or ".join(HASH_FUNCTIONS))
    if configured is not None and recorded != configured:
        raise ClusterDisagrees(
            f"{znodes.CLUSTER}: this cluster hashes topics with {recorded}, and the "
            f"configuration says [cluster] hash = {configured!r}; remove that key or set it to "
            f"{recorded!r}, or use another [zookeeper] chroot for a new cluster"
        )
    return recorded


KEY_BYTES: Final = 32
_MOST_BYTES: Final = 4_096
_KEY_RETRY_S: Final = 1.0
_RECHECK_S: Final = 30.0


def new_key() -> bytes:
    return secrets.token_bytes(KEY_BYTES)


async def key_of_cluster(coordination: Coordination, make: Callable[[], bytes] = new_key) -> bytes:
    """Return the key, created if there is none. Raises `MalformedContent`: it is no key."""
    while True:
        node = await coordination.get(znodes.KEY)
        if node is not None:
            return _decoded(node)
        # If another process creates it first, its key applies.
        with suppress(NodeExists):
            await coordination.create(znodes.KEY, make(), private=True)
            log.info("cluster.key.created", path=znodes.KEY)


class ClusterKey:
    def __init__(
        self, coordination: Coordination, clock: Clock, make: Callable[[], bytes] = new_key
    ) -> None:
        self._coordination = coordination
        self._clock = clock
        self._make = make
        self._changes = Subscriptions()
        self.value: bytes | None = None
        """None while unknown; after a lost connection the last known key."""

    async def run(self) -> None:
        watch = self._coordination.watch(znodes.KEY, self._read)
        try:
            while True:
                if self.value is None and not await self._makes_sure():
                    await self._clock.sleep(_KEY_RETRY_S)
                else:
                    await self._changes.wait(_RECHECK_S)
        finally:
            watch.close()

    async def _makes_sure(self) -> bool:
        """Ensure that a key exists, which the watch then reads; return whether it does."""
        try:
            await key_of_cluster(self._coordination, self._make)
        except (Disconnected, SessionLost):
            return False  # The session's state shows it.
        except CoordinationError as error:
            log.warning("cluster.key.read_failed", path=znodes.KEY, error=str(error))
            return False
        except MalformedContent:
            return True  # The watch reports it, and its replacement.
        return True

    def _read(self, node: Node | None) -> None:
        self.value = None
        try:
            self.value = None if node is None else _decoded(node)
        except MalformedContent as error:
            log.warning("znode.content.refused", path=znodes.KEY, error=str(error))
        self._changes.notify()


def _decoded(node: Node) -> bytes:
    if not KEY_BYTES <= len(node.data) <= _MOST_BYTES:
        found, expected = f"{len(node.data)} bytes", f"a key of {KEY_BYTES} to {_MOST_BYTES} bytes"
        raise MalformedContent(znodes.KEY, found, f"{expected}; delete the node to get a new one")
    return node.data
