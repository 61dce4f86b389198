"""What all members of a cluster must agree on before any of them may act."""

import structlog

from loadmanager.core import znodes
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.hashing import HASH_FUNCTIONS, HashName
from loadmanager.core.wire.fields import parse_fields, to_json
from loadmanager.ports import Clock, Coordination, CoordinationError, NodeExists

log = structlog.get_logger()

_RETRY_S = 0.5
_TELL_EVERY_S = 10.0
_PATIENCE_S = 2.0


class ClusterDisagrees(LoadManagerError):
    """The configuration differs from what the cluster was founded with."""


async def agree_on_hash(coordination: Coordination, clock: Clock, hash_name: HashName) -> None:
    """Record the hash function of a new cluster, or compare with the recorded one.

    Two members with different functions would each find another bundle for a topic,
    and both be sure of it. Waits for the service for as long as it takes, and says so.

    Raises:
        ClusterDisagrees: the cluster uses another function.
        MalformedContent: the record cannot be read.
    """
    told_at_s = clock.monotonic_s() - _TELL_EVERY_S + _PATIENCE_S
    while True:
        try:
            await coordination.create(znodes.CLUSTER, to_json({"hash": hash_name}))
            log.info("cluster.record.created", hash=hash_name)
        except NodeExists:
            pass
        except CoordinationError as error:
            if clock.monotonic_s() - told_at_s >= _TELL_EVERY_S:
                told_at_s = clock.monotonic_s()
                log.warning("coordination.service.awaited", error=str(error))
            await clock.sleep(_RETRY_S)
            continue
        try:
            node = await coordination.get(znodes.CLUSTER)
        except CoordinationError:
            await clock.sleep(_RETRY_S)
            continue
        if node is not None:
            _compare(node.data, hash_name)
            return


def _compare(data: bytes, hash_name: HashName) -> None:
    recorded = parse_fields(znodes.CLUSTER, data).text("hash")
    if recorded not in HASH_FUNCTIONS:
        known = " or ".join(HASH_FUNCTIONS)
        raise MalformedContent(znodes.CLUSTER, f"hash = {recorded!r}", known)
    if recorded != hash_name:
        raise ClusterDisagrees(
            f"{znodes.CLUSTER}: this cluster hashes topics with {recorded}, and the "
            f"configuration says [cluster] hash = {hash_name!r}; set it to {recorded!r}, or use "
            "another [zookeeper] chroot for a new cluster"
        )
