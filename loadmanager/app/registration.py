"""Registering a broker in this session, and clearing what an earlier session left.

An ephemeral of an earlier session still stands until that session expires. It must
not be trusted (it vanishes at any moment) nor waited for (a restarted broker would be
away for a whole session timeout). So it is deleted and created anew in one commit:
the folder's watchers never see a gap, and the czxid of the new node, the agent epoch,
is higher than that of any earlier registration of this broker.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence

import structlog

from loadmanager.app.commanding import PARALLEL
from loadmanager.app.identity import Identity
from loadmanager.app.membership import Membership
from loadmanager.app.parts import Parts
from loadmanager.app.succession import Succession
from loadmanager.core import znodes
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.orders import decode_owned, encode_owned
from loadmanager.core.wire import decode_lock, encode_agent, encode_loads, encode_registration
from loadmanager.ports import (
    Check,
    CommitRejected,
    Coordination,
    Create,
    Delete,
    Node,
    NodeExists,
    NodeMissing,
    Operation,
    SessionLost,
    SetData,
    VersionMismatch,
)

log = structlog.get_logger()

_ATTEMPTS = 10


async def register(
    coordination: Coordination, identity: Identity, report: LoadReport, succession: Succession
) -> tuple[Membership, Mapping[BundleId, int]]:
    """Register the broker with its first report and an empty owned list.

    Return the membership, and the bundles that an earlier session of this broker still
    lists as owned, with their tokens: their locks may be cleared once the broker
    confirmed the new epoch.

    Raises:
        Displaced: another agent registered the broker after this one had.
        StandingBy: another agent has the broker, and must be gone first.
        SessionLost: the session ended meanwhile.
        Disconnected: the reply was lost; to register again is safe.
    """
    session_id = coordination.session.session_id
    broker = identity.broker
    folders = (znodes.BROKERS, znodes.LOADS, znodes.OWNED, znodes.LOCKS, znodes.agents(broker))
    for folder in folders:
        await coordination.ensure(folder)
    mark = znodes.agent(broker, session_id)
    contents = {
        znodes.registration(broker): encode_registration(report),
        znodes.loads(broker): encode_loads(report),
        znodes.owned(broker): encode_owned({}),
    }
    for _ in range(_ATTEMPTS):
        # Read before all else: its version tells that nobody registered since.
        turn = await _turn(coordination, broker)
        marks, rivals = await succession.marks()
        contents[mark] = encode_agent(succession.record(rivals))
        former = await coordination.get(znodes.owned(broker))
        operations = [turn, *await _replacing(coordination, contents, marks)]
        before = succession.tried(rivals)
        try:
            await coordination.commit(operations)
        except CommitRejected as rejected:
            succession.untried(before)
            if not isinstance(rejected.cause, NodeExists | NodeMissing | VersionMismatch):
                raise rejected.cause from rejected
            continue
        membership = await _confirmed(coordination, identity, session_id)
        succession.registered(membership.agent_epoch)
        return membership, _listed(former, broker)
    raise SessionLost(f"{znodes.registration(broker)} changed at each of {_ATTEMPTS} attempts")


async def _turn(coordination: Coordination, broker: BrokerId) -> Operation:
    """Return what fails if another agent of the broker registers first."""
    folder = znodes.agents(broker)
    node = await coordination.get(folder)
    return SetData(folder, b"", 0 if node is None else node.stat.version)


async def _replacing(
    coordination: Coordination, contents: Mapping[str, bytes], marks: Sequence[str]
) -> list[Operation]:
    """Return what puts ``contents`` in the place of what stands, and deletes all ``marks``."""
    operations: list[Operation] = [Delete(mark) for mark in marks if mark not in contents]
    for path, content in contents.items():
        node = await coordination.get(path)
        if node is not None:
            operations.append(Delete(path, node.stat.version))
        operations.append(Create(path, content, ephemeral=True))
    return operations


async def _confirmed(coordination: Coordination, identity: Identity, session_id: int) -> Membership:
    node = await coordination.get(znodes.registration(identity.broker))
    if node is None or node.stat.ephemeral_owner != session_id:
        raise SessionLost(f"{znodes.registration(identity.broker)} is not of this session any more")
    log.info("broker.registration.created", broker=identity.broker, agent_epoch=node.stat.czxid)
    return Membership(identity.broker, session_id, node.stat.czxid)


def _listed(former: Node | None, broker: str) -> Mapping[BundleId, int]:
    if former is None:
        return {}
    try:
        listed = decode_owned(f"{znodes.OWNED}/{broker}", former.data, former.stat.mzxid)
    except MalformedContent as error:
        log.warning("znode.content.refused", path=error.where, error=str(error))
        return {}
    return listed.tokens


async def clear_former_locks(
    parts: Parts, membership: Membership, former_tokens: Mapping[BundleId, int]
) -> None:
    """Delete the locks with these tokens that earlier sessions of this broker left.

    The broker obeys this membership's epoch by now, so no earlier agent can have it
    load them again; it stops serving each one before its lock goes.

    Raises, in a group:
        BrokerError: the broker did not confirm that it stopped.
        StaleAgent: a newer agent commands the broker.
    """
    # All at once: one after the other, they would wait for the service as often as there are locks.
    parallel = asyncio.Semaphore(PARALLEL)
    clearing = [
        _clear(parts, membership, bundle, token, parallel)
        for bundle, token in former_tokens.items()
    ]
    # No `TaskGroup`: one that is only waited for leaves this task marked as being cancelled if
    # a part fails. All are waited for, so that none deletes what the next membership takes.
    outcomes = await asyncio.gather(*clearing, return_exceptions=True)
    errors = [one for one in outcomes if isinstance(one, Exception)]
    if errors:
        raise ExceptionGroup("former locks could not be cleared", errors)


async def _clear(
    parts: Parts,
    membership: Membership,
    bundle: BundleId,
    token: int,
    parallel: asyncio.Semaphore,
) -> None:
    async with parallel:
        epoch = membership.agent_epoch
        await parts.broker.unload(bundle, agent_epoch=epoch, fencing_token=token)
        for _ in range(_ATTEMPTS):
            try:
                await _delete_former_lock(parts.coordination, membership, bundle)
            except CommitRejected as rejected:
                # Any lock of the namespace may have been taken since, this one or another.
                why = str(rejected)
            else:
                return
        log.warning("bundle.lock.left", bundle=bundle, why=why)


async def _delete_former_lock(
    coordination: Coordination, membership: Membership, bundle: BundleId
) -> None:
    """Delete a lock if it is still one of this broker.

    Raises:
        CommitRejected: it may be that of another broker by now.
    """
    path, folder_path = znodes.lock(bundle), znodes.lock_folder(bundle)
    folder = await coordination.get(folder_path)
    node = await coordination.get(path)
    if node is None or folder is None:
        return
    try:
        if decode_lock(path, node.data).broker != membership.broker:
            return
    except MalformedContent as error:
        log.warning("znode.content.refused", path=path, error=str(error))
        return
    if node.stat.ephemeral_owner == membership.session_id:
        # Only another agent of this broker, who deletes our mark, would replace it.
        unchanged = Check(znodes.agent(membership.broker, membership.session_id), 0)
    else:
        # A lock that another broker has taken since has the same version, and every
        # taking changes the folder: so that one is not deleted.
        unchanged = Check(folder_path, folder.stat.version)
    await coordination.commit([unchanged, Delete(path, node.stat.version)])
    log.info("bundle.lock.cleared", bundle=bundle)


async def listed_here(coordination: Coordination, broker: BrokerId) -> Mapping[BundleId, int]:
    """Return the bundles that this session lists as owned, with tokens.

    Those of a commit whose reply was lost, or that nobody waited for, are among them.

    Raises:
        CoordinationError: it cannot be read now.
    """
    await coordination.heartbeat()  # What was on its way is applied by then, or never.
    node = await coordination.get(znodes.owned(broker))
    ours = node is not None and node.stat.ephemeral_owner == coordination.session.session_id
    return _listed(node, broker) if ours else {}


async def release_locks(
    coordination: Coordination, broker: BrokerId, bundles: Collection[BundleId]
) -> None:
    """Delete the locks of these bundles that this session holds, and empty its list.

    For a broker whose lease of this agent is over, and which takes no command of it. Its
    registration goes with the first locks: lookups name a registered broker by its list.

    Raises:
        CoordinationError: some may stand; to release them again is safe.
    """
    session_id, path = coordination.session.session_id, znodes.owned(broker)
    mark = znodes.agent(broker, session_id)
    marked = await coordination.get(mark) is not None
    ordered, released = sorted(bundles), 0
    for first in range(0, len(ordered), PARALLEL):
        batch = ordered[first : first + PARALLEL]
        unchanged = [Check(mark, 0)] if marked else await _folders_unchanged(coordination, batch)
        listing = () if first else (znodes.registration(broker), znodes.loads(broker))
        unlisted, deletes = await asyncio.gather(
            _deletes_of(session_id, coordination, listing),
            _deletes_of(session_id, coordination, list(map(znodes.lock, batch))),
        )
        if unlisted or deletes:
            await coordination.commit([*unchanged, *unlisted, *deletes])
        released += len(deletes)
    listed = await coordination.get(path)
    if listed is not None and listed.stat.ephemeral_owner == session_id:
        # Only now: a lock that no list names would be nobody's to delete.
        await coordination.set(path, encode_owned({}), version=listed.stat.version)
    log.info("bundle.locks.released", broker=broker, bundles=released)


async def _folders_unchanged(
    coordination: Coordination, bundles: Collection[BundleId]
) -> list[Operation]:
    """Return what fails if one of these locks, which are read next, was replaced by then.

    Another agent of this broker, which alone replaces them, deleted our mark when it registered.
    """
    paths = sorted({znodes.lock_folder(bundle) for bundle in bundles})
    folders = await asyncio.gather(*map(coordination.get, paths))
    return [
        Check(path, folder.stat.version)
        for path, folder in zip(paths, folders, strict=True)
        if folder is not None
    ]


async def _deletes_of(
    session_id: int, coordination: Coordination, paths: Sequence[str]
) -> list[Operation]:
    """Return what deletes those of the nodes that the session holds."""
    nodes = await asyncio.gather(*map(coordination.get, paths))
    return [
        Delete(path, node.stat.version)
        for path, node in zip(paths, nodes, strict=True)
        if node is not None and node.stat.ephemeral_owner == session_id
    ]


async def deregister(coordination: Coordination, membership: Membership) -> None:
    """Take the broker out of the cluster while the session lives on.

    Its owned list stays, for as long as locks are held it must name them.
    """
    for path in (znodes.registration(membership.broker), znodes.loads(membership.broker)):
        node = await coordination.get(path)
        if node is not None and node.stat.ephemeral_owner == membership.session_id:
            await coordination.delete(path, version=node.stat.version)
    log.info("broker.registration.deleted", broker=membership.broker)
