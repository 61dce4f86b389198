"""Real Pulsar clients while their bundles move, are cut, and lose their broker."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from cluster_processes import ProcessCluster
from pulsar_cluster import Stream, pulsar_cluster
from waiting import eventually

from loadmanager.core.hashing import DEFAULT_HASH, HashName
from loadmanager.core.ids import BundleId
from loadmanager.demo.cluster import Member
from loadmanager.demo.traffic import topic_names
from loadmanager.reference_broker.changes import overlaps

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]

BROKERS: Final = 3
BUNDLES: Final = 6
TOPICS: Final = 9


@asynccontextmanager
async def streaming(
    processes: ProcessCluster,
    pulsar: Any,
    quiet: Any,
    topics: int,
    hash_name: HashName = DEFAULT_HASH,
) -> AsyncIterator[list[Stream]]:
    url = processes.cluster.members[0].sidecar_url
    types = pulsar.ConsumerType
    kinds = (types.Exclusive, types.Shared, types.Failover)
    client = await asyncio.to_thread(lambda: pulsar.Client(url, logger=quiet))
    try:
        names = topic_names(topics, processes.boundaries, hash_name)
        streams = [Stream(client, name, kinds[i % 3]) for i, name in enumerate(names)]
        for stream in streams:
            await asyncio.to_thread(stream.start)
        await progress(streams)
        yield streams
    finally:
        await asyncio.to_thread(client.shutdown)


async def progress(streams: Sequence[Stream], messages: int = 20) -> None:
    """Wait until every stream has sent and received so many messages more."""
    marks = [(len(one.acknowledged) + messages, len(one.received) + messages) for one in streams]

    def all_went_on() -> bool:
        assert [error for one in streams for error in one.errors] == []
        return all(
            len(one.acknowledged) >= sent and len(one.received) >= received
            for one, (sent, received) in zip(streams, marks, strict=True)
        )

    await eventually(all_went_on)


async def everything_consumed(streams: Sequence[Stream]) -> None:
    """Stop sending and wait until each acknowledged message has been received."""
    for stream in streams:
        await stream.stop_sending()
    await eventually(lambda: not any(stream.missing for stream in streams))
    for stream in streams:
        await stream.stop_receiving()
    assert [error for one in streams for error in one.errors] == []


async def put(processes: ProcessCluster, member: Member, path: str, **query: str) -> None:
    """Ask a sidecar for a change; it is done when this returns."""
    url = f"{member.sidecar_url}/admin/v2/{path}"
    async with processes.http.put(url, params=query) as answer:
        assert answer.status == 204, await answer.text()


def owner_of(processes: ProcessCluster, bundle: BundleId) -> Member | None:
    alive = processes.cluster.alive
    return next((one for one in alive if bundle in processes.served_now([one])), None)


@pytest.mark.parametrize(
    "hash_name", [DEFAULT_HASH, pytest.param("murmur3", marks=pytest.mark.thorough)]
)
async def test_clients_follow_their_bundles_and_lose_no_message(
    tmp_path: Path, pulsar: Any, quiet: Any, hash_name: HashName
) -> None:
    async with AsyncExitStack() as held:
        processes = await held.enter_async_context(
            pulsar_cluster(tmp_path, brokers=BROKERS, bundles=BUNDLES, hash_name=hash_name)
        )
        await processes.start()
        streams = await held.enter_async_context(
            streaming(processes, pulsar, quiet, TOPICS, hash_name)
        )
        members = processes.cluster.members
        for number, bundle in enumerate(processes.boundaries.bundles):
            target = members[number % BROKERS]
            await put(
                processes,
                members[1],
                f"namespaces/{bundle}/unload",
                destinationBroker=target.broker,
            )
        await progress(streams)
        # The leader's orders named who is next, so that no client had to look it up.
        logs = await asyncio.to_thread(lambda: [one.read_text() for one in tmp_path.glob("*.log")])
        assert any("bundle.clients.forwarded" in one for one in logs)
        first = processes.boundaries.bundles[0]
        await put(processes, members[0], f"namespaces/{first}/split")
        await progress(streams)
        await put(processes, members[0], f"loadmanager/brokers/{members[2].broker}/drain")
        await eventually(lambda: not processes.served_now([members[2]]))
        await progress(streams)
        await everything_consumed(streams)
    assert overlaps(processes.intervals()) == []


async def test_what_a_killed_broker_acknowledged_is_consumed_too(
    tmp_path: Path, pulsar: Any, quiet: Any
) -> None:
    async with AsyncExitStack() as held:
        processes = await held.enter_async_context(
            pulsar_cluster(tmp_path, brokers=BROKERS, bundles=BUNDLES)
        )
        await processes.start()
        streams = await held.enter_async_context(streaming(processes, pulsar, quiet, TOPICS))
        # The clients ask the first member's sidecar, which has to stay.
        survivors, victim = processes.cluster.members[:2], processes.cluster.members[2]
        first = processes.boundaries.bundles[0]
        await put(
            processes, survivors[0], f"namespaces/{first}/unload", destinationBroker=victim.broker
        )
        lost = set(processes.served_now([victim]))
        assert lost
        await progress(streams)
        await processes.cluster.kill(victim)
        await eventually(lambda: lost <= set(processes.served_now(survivors)))
        await progress(streams)
        await everything_consumed(streams)
    assert overlaps(processes.intervals()) == []


async def test_the_leader_sheds_what_real_clients_load(
    tmp_path: Path, pulsar: Any, quiet: Any
) -> None:
    async with AsyncExitStack() as held:
        processes = await held.enter_async_context(
            pulsar_cluster(tmp_path, brokers=2, bundles=BUNDLES, cpu_ms_per_message=0.5)
        )
        await processes.start()
        streams = await held.enter_async_context(streaming(processes, pulsar, quiet, TOPICS))
        loaded, idle = processes.cluster.members
        for bundle in processes.boundaries.bundles:
            path = f"namespaces/{bundle}/unload"
            await put(processes, loaded, path, destinationBroker=loaded.broker)
        await eventually(lambda: not processes.served_now([idle]))
        await eventually(lambda: processes.served_now([idle]), within_s=120)
        await progress(streams)
        await everything_consumed(streams)
    assert overlaps(processes.intervals()) == []
