"""A small cluster of fake brokers with traffic on the first one alone."""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from coordination_worlds import connected
from fake_pulsar import FakeBroker, FakePulsar, running

from loadmanager.cli import main
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import position
from loadmanager.core.ids import Namespace, parse_broker, parse_bundle, parse_full_topic
from loadmanager.pulsar.client import PulsarAdmin
from loadmanager.pulsar.moves import BrokerQueries, BundleMover, Unload
from loadmanager.pulsar.state import SharedState, State, state_file
from tests.testbed.memory import MemoryCoordination, MemoryService

BOUNDARIES = Boundaries.even(Namespace("bench/skew"), 8)


def topics_in_bundles() -> dict[str, str]:
    found: dict[str, str] = {}
    number = 0
    while len(found) < len(BOUNDARIES.bundles):
        topic = f"persistent://bench/skew/topic-{number}"
        found.setdefault(BOUNDARIES.at(position(parse_full_topic(topic), "crc32")), topic)
        number += 1
    return found


def isolation_policy(
    namespaces: str, primary: list[str], secondary: Sequence[str] = (), min_limit: int = 1
) -> dict[str, Any]:
    return {
        "namespaces": [namespaces],
        "primary": primary,
        "secondary": [*secondary],
        "auto_failover_policy": {
            "policy_type": "min_available",
            "parameters": {"min_limit": str(min_limit), "usage_threshold": "100"},
        },
    }


def attach(pulsar: FakePulsar | str, *options: str) -> Result:
    url = pulsar if isinstance(pulsar, str) else pulsar.url
    return CliRunner().invoke(main, ["attach", "--pulsar", url, "--interval", "0.2", *options])


def seen(pulsar: FakePulsar, *options: str) -> dict[str, Any]:
    found = attach(pulsar, "--once", "--json", *options)
    assert found.exit_code == 0, found.output
    told: dict[str, Any] = json.loads(found.stdout)
    return told


def move(pulsar: FakePulsar, number: int = 0) -> Unload:
    """Return the move of one of the first broker's bundles to the second one."""
    first, second, _ = pulsar.brokers
    return Unload(
        bundle=parse_bundle(first.owned[number]),
        source=parse_broker(first.name),
        target=parse_broker(second.name),
        topic=parse_full_topic(list(first.topics)[number]),
    )


def mover(
    admin: PulsarAdmin, pulsar: FakePulsar, *, claims: bool = True, **times: float
) -> BundleMover:
    queries = BrokerQueries(
        admin,
        lambda broker: f"http://{broker}",
        "research",
        lambda: [parse_broker(one.name) for one in pulsar.brokers],
    )
    # Without claims the source is asked after that time, too: long after what is tried here.
    return BundleMover(queries, claims, **{"look_s": 0.3 if claims else 20.0, **times})


@pytest.fixture(autouse=True)
def brief_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for less long, and more often, where a bundle went: a fake broker moves it at once."""
    brief = partial(BundleMover, look_s=0.2)
    monkeypatch.setattr("loadmanager.pulsar.orders.BundleMover", brief)
    monkeypatch.setattr("loadmanager.pulsar.moves._PAUSE_S", 0.02)
    monkeypatch.setattr("loadmanager.pulsar.moves._SPLIT_LOOK_S", 0.2)
    monkeypatch.setattr("loadmanager.pulsar.state._PAUSE_S", 0.02)


@pytest.fixture
def pulsar() -> Iterator[FakePulsar]:
    """Run three brokers; the first has eight bundles with a topic each, all alike."""
    topics = topics_in_bundles()
    first = FakeBroker(
        owned=[*topics, "pulsar/research/127.0.0.1:8081/0x00000000_0xffffffff"],
        topics={topic: [1000.0, 0.0, 100_000.0, 0.0] for topic in topics.values()},
        grows=dict.fromkeys(topics.values(), (50.0, 100.0, 5_000.0, 10_000.0)),
    )
    with running(FakePulsar([first, FakeBroker(), FakeBroker()])) as cluster:
        yield cluster


@pytest.fixture
def hosts() -> Iterator[FakePulsar]:
    """Run three brokers, each on a host of its own, that share eight bundles."""
    shares: list[dict[str, str]] = [{}, {}, {}]
    for number, (bundle, topic) in enumerate(topics_in_bundles().items()):
        shares[number % 3][bundle] = topic
    brokers = [
        FakeBroker(
            host=f"127.0.0.{number}",
            owned=list(share),
            topics={topic: [1000.0, 0.0, 100_000.0, 0.0] for topic in share.values()},
            grows=dict.fromkeys(share.values(), (50.0, 100.0, 5_000.0, 10_000.0)),
        )
        for number, share in enumerate(shares, 1)
    ]
    with running(FakePulsar(brokers)) as cluster:
        yield cluster


@pytest.fixture(params=["file", "node"])
async def state(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[State]:
    if request.param == "file":
        yield state_file(tmp_path, "research")
        return
    session = MemoryCoordination(MemoryService())
    await connected(session)
    yield SharedState(session)
    await session.close()
