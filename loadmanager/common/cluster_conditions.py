from dataclasses import dataclass
from typing import Final

import structlog

from loadmanager.common.chroot import refuse_nodes_of_others
from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.fields import parse_fields, to_json
from loadmanager.core.hashing import DEFAULT_HASH, HASH_FUNCTIONS, HashName, position
from loadmanager.core.ids import TopicName
from loadmanager.ports.coordination import Coordination, CoordinationError, NodeExists
from loadmanager.ports.host import Clock
from loadmanager.ports.lookup import Unavailable

log = structlog.get_logger()

FORMAT: Final = 2
"""The format of all nodes of a cluster. Version 0.1 recorded none."""

_COMMANDED: Final = "contract"
"""The kind of brokers if none is recorded."""

OF_ATTACH: Final = "attach"
"""The kind where candidates of ``loadmanager attach`` lead, with whom no sidecar may stand."""

_RETRY_S = 0.5
_TELL_EVERY_S = 10.0
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

    ``hash_name`` None stands for the recorded hash, and for Pulsar's in a new cluster.
    ``default_chroot`` is where the nodes are when no chroot is configured, empty when
    one is. ``kind`` is that of the brokers, empty where it does not matter.
    """

    hash_name: HashName | None = None
    default_chroot: str = ""
    kind: str = ""


async def agree(coordination: Coordination, clock: Clock, wanted: Conditions) -> HashName:
    """Return the cluster's hash function once the nodes are seen to be this cluster's.

    Two members with different functions would compute different bundles for the same topic. This
    waits for ZooKeeper without a limit, and logs the wait. Raises `ClusterDisagrees`: the cluster
    uses another function, or another format of nodes; `ChrootRefused`: the nodes belong to Pulsar,
    or those of the cluster are elsewhere; `MalformedContent`: the record cannot be read.
    """
    told_at_s = clock.monotonic_s() - _TELL_EVERY_S + _PATIENCE_S
    while True:
        try:
            await refuse_nodes_of_others(coordination, wanted.default_chroot)
            data = await _recorded(coordination, wanted)
        except CoordinationError as error:
            if clock.monotonic_s() - told_at_s >= _TELL_EVERY_S:
                told_at_s = clock.monotonic_s()
                log.warning("coordination.service.unavailable", error=str(error))
            await clock.sleep(_RETRY_S)
            continue
        if data is not None:
            return _agreed(data, wanted)


async def _recorded(coordination: Coordination, wanted: Conditions) -> bytes | None:
    """Return the cluster's record, created for a new cluster; None if it was just deleted."""
    record: dict[str, object] = {"format": FORMAT, "hash": wanted.hash_name or DEFAULT_HASH}
    if wanted.kind not in {"", _COMMANDED}:
        record["kind"] = wanted.kind
    try:
        await coordination.create(znodes.CLUSTER, to_json(record))
        log.info("cluster.record.created", **record)
    except NodeExists:
        pass
    node = await coordination.get(znodes.CLUSTER)
    return None if node is None else node.data


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
