"""Tests told as stories: what happens to a cluster in virtual time, and what is true then."""

import asyncio
import functools
import inspect
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import lies_in, position
from loadmanager.core.ids import BundleId, Namespace, TopicName, parse_topic
from loadmanager.core.wire.policies import decode_boundaries
from tests.testbed.faults.agent import Agent
from tests.testbed.faults.cluster import NAMESPACE, Cluster, make_config, play, topic_in
from tests.testbed.faults.host import Host
from tests.testbed.faults.virtual_time import run
from tests.testbed.memory.link import LossPlace

BY_HAND: dict[str, Any] = {"split": {"enabled": False}}
"""The configuration of a cluster in which bundles are split only when a test says so."""

Story = Callable[..., Coroutine[Any, Any, None]]


def told(
    run_story: Callable[[Story], object], *, given: int
) -> Callable[[Story], Callable[..., None]]:
    """Make tests of coroutines whose first ``given`` arguments come from ``run_story``."""

    def decorate(tell: Story) -> Callable[..., None]:
        @functools.wraps(tell)
        def test(**arguments: Any) -> None:
            run_story(functools.partial(tell, **arguments))

        parameters = list(inspect.signature(tell).parameters.values())
        test.__signature__ = inspect.Signature(parameters[given:])  # type: ignore[attr-defined] # pytest reads it
        return test

    return decorate


in_virtual_time = told(lambda tell: run(tell()), given=0)


def story(
    sidecars: int = 3, *, seed: int = 1, checked: bool = True, **sections: Mapping[str, Any]
) -> Callable[[Story], Callable[..., None]]:
    """Make a test of a coroutine that is given a running `Cluster` first.

    ``sections`` change the configuration. ``checked`` False is for stories that break
    by hand what the check at the end is about.
    """
    return told(
        lambda tell: play(
            tell, sidecars, seed=seed, checked=checked, config=make_config(**sections)
        ),
        given=1,
    )


def each_loss(writes: int) -> list[object]:
    """Return a row for the loss of each request and reply; half are for the thorough suite."""
    rows = itertools.product(range(writes), enumerate(LossPlace))
    return [
        pytest.param(number, place, marks=pytest.mark.thorough if (number + side) % 2 else ())
        for number, (side, place) in rows
    ]


def now_s() -> float:
    return asyncio.get_running_loop().time()


def registered(agent: Agent) -> bool:
    return agent.application is not None and agent.app.member.registered


def reasons(agent: Agent) -> str:
    """Return why a sidecar is not ready, or nothing."""
    readiness = agent.app.answering.readiness()
    assert readiness.ready is not bool(readiness.reasons)
    return "; ".join(readiness.reasons)


async def place_all(cluster: Cluster, boundaries: Boundaries) -> list[TopicName]:
    """Look every bundle up once, wait until all are served; return a topic of each."""
    topics = [topic_in(boundaries, bundle) for bundle in boundaries.bundles]
    asking = cluster.living[0]
    await asyncio.gather(*(asking.look_up(topic) for topic in topics))
    await cluster.settled(boundaries.bundles)
    return topics


async def placed(
    cluster: Cluster, bundles: int, name: Namespace = NAMESPACE
) -> tuple[Boundaries, list[TopicName]]:
    """Make a namespace whose bundles are all served; return a topic of each too."""
    boundaries = await cluster.make_namespace(bundles, name)
    return boundaries, await place_all(cluster, boundaries)


async def served(cluster: Cluster, bundles: int = 4, name: Namespace = NAMESPACE) -> Boundaries:
    return (await placed(cluster, bundles, name))[0]


async def served_beside(
    cluster: Cluster, bundles: int, *, serving: bool = True
) -> tuple[Boundaries, Agent]:
    """Return a new namespace whose bundles are all served, and a `follower`."""
    return await served(cluster, bundles), follower(cluster, serving=serving)


async def start_hosts(cluster: Cluster, count: int) -> None:
    for _ in range(count):
        cluster.start(cluster.add_host())
    await cluster.ready()


async def crash(agent: Agent) -> None:
    """End a broker and its sidecar."""
    agent.host.kill_broker()
    await agent.kill()


def follower(cluster: Cluster, *, serving: bool = True) -> Agent:
    """Return a sidecar that does not lead, and whose broker serves something unless any will do."""
    return next(a for a in cluster.living if not a.leads and (a.host.serving or not serving))


def other_than(cluster: Cluster, *hosts: Host) -> Host:
    return next(host for host in cluster.hosts if host not in hosts)


def boundaries_now(cluster: Cluster) -> Boundaries:
    """Return the bundles of `NAMESPACE` as they stand in the service."""
    path = znodes.local_policies(NAMESPACE)
    node = cluster.service.dump()[path]
    return decode_boundaries(path, NAMESPACE, node.data, node.stat.version)


def topics_in(boundaries: Boundaries, bundle: BundleId, count: int) -> list[TopicName]:
    names = (f"persistent://{boundaries.namespace}/t-{number}" for number in range(100_000))
    topics = map(parse_topic, names)
    found = (one for one in topics if boundaries.at(position(one, "crc32")) == bundle)
    return list(itertools.islice(found, count))


def publish(cluster: Cluster, topics: Sequence[TopicName], payload_bytes: int = 100) -> None:
    for topic in topics:
        for host in cluster.hosts:
            host.broker.publish(topic, payload_bytes=payload_bytes)


@asynccontextmanager
async def looked_up(
    cluster: Cluster, topics: Sequence[TopicName], pause_s: float = 0.003
) -> AsyncIterator[None]:
    """Look topics up beside every broker all the time; a lookup that fails fails the story.

    A sidecar that is told to stop, or is not ready, is not asked.
    """
    answered = 0

    async def keep_looking_up(host: Host) -> None:
        nonlocal answered
        for topic in itertools.cycle(topics):
            await asyncio.sleep(pause_s)
            agent = cluster.agent_of(host.name)
            if agent not in cluster.living or agent.application is None or agent.stop.is_set():
                continue
            if agent.app.answering.readiness().ready:
                owner = await agent.look_up(topic)
                assert lies_in(position(topic, "crc32"), owner.bundle)
                answered += 1

    lookers = [asyncio.ensure_future(keep_looking_up(host)) for host in cluster.hosts]
    try:
        yield
        await asyncio.sleep(1.0)
    finally:
        for looker in lookers:
            looker.cancel()
        for looker in lookers:
            with suppress(asyncio.CancelledError):
                await looker
    assert answered > 10 * len(topics)


@asynccontextmanager
async def published(
    cluster: Cluster,
    topics: Sequence[TopicName],
    payload_bytes: int = 1000,
    *,
    every_s: float = 0.25,
    times: Callable[[int, int], int] = lambda number, _turn: 1 + number % 4,
) -> AsyncIterator[None]:
    """Publish all the time, in each turn so many ``times`` to the topic of that number."""

    async def publish_for_ever() -> None:
        for turn in itertools.count():
            for number, topic in enumerate(topics):
                for host in cluster.hosts:
                    for _ in range(times(number, turn)):
                        host.broker.publish(topic, payload_bytes=payload_bytes)
            await asyncio.sleep(every_s)

    publishing = asyncio.ensure_future(publish_for_ever())
    try:
        yield
    finally:
        publishing.cancel()
        with suppress(asyncio.CancelledError):
            await publishing
