"""Every node in ZooKeeper with all fields that its writer can give it, for its format."""

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from coordination_worlds import connected
from largest_reports import largest_report

from loadmanager.adapters.clock import SystemClock
from loadmanager.common.cluster_conditions import FORMAT, Conditions, agree
from loadmanager.core import znodes
from loadmanager.core.averages import BundleAverages, Running
from loadmanager.core.balancing import Balancing, BalancingMode
from loadmanager.core.bundles import Boundaries
from loadmanager.core.fields import unpacked_object
from loadmanager.core.ids import BrokerId, Namespace, TopicName
from loadmanager.core.load import BrokerUrls, ResourceUsage
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.move_limits import MoveBudget, MoveLimits
from loadmanager.core.optimality import BalancePoint
from loadmanager.core.orders import Orders, SplitOrder, encode_orders, encode_owned
from loadmanager.core.wire.policies import encode_boundaries, encode_policies, encode_tenant
from loadmanager.core.wire.records import (
    AgentRecord,
    DrainMark,
    LeaderRecord,
    LockRecord,
    encode_agent,
    encode_balancing,
    encode_drain_mark,
    encode_leader,
    encode_lock,
    encode_partitions,
)
from loadmanager.core.wire.reports import encode_loads, encode_registration
from loadmanager.core.wire.standby import Standby, encode_standby
from loadmanager.pulsar.answers import PulsarCluster
from loadmanager.pulsar.held_brokers import Cordon, Cordons, HeldTargets
from loadmanager.pulsar.state import Course, Part, PriorSettings, SharedState, StoredBudget
from tests.testbed.memory import MemoryCoordination, MemoryService

BROKER: Final = BrokerId("{broker}")
NAMESPACE: Final = Namespace("{tenant}/{namespace}")
TOPIC: Final = TopicName("persistent", NAMESPACE, "topic")
WHOLE: Final = Boundaries.even(NAMESPACE, 1)
(BUNDLE,) = WHOLE.bundles
RANGE: Final = BUNDLE.rpartition("/")[2]
URLS: Final = BrokerUrls("http", "http_tls", "native", "native_tls")
REPORT: Final = replace(
    largest_report(BROKER, [BUNDLE]),
    urls=URLS,
    cpu=ResourceUsage(1.0, 2.0, 1.0, 0.5),
    broker_class="class",
    version="version",
    protocols={"{protocol}": "text"},
    advertised_listeners={"{listener}": URLS},
    gains=frozenset({BUNDLE}),
    losses=frozenset({BUNDLE}),
)
MEMORY: Final = Memory(
    usage={BROKER: 1.0},
    high_hits={BROKER: 1},
    low_hits={BROKER: 1},
    planned={BUNDLE: BROKER},
    turn_order=(BROKER,),
    shed_at_s={BROKER: 1.0},
)
STATE: Final = Standby(
    RoundMemory(
        shedder=MEMORY, placement=MEMORY, moved_at_s={BUNDLE: 1.0}, started_at_ms={BROKER: 1}
    ),
    {BUNDLE: BundleAverages.supposed()},
    {BROKER: Running(1.0, 1.0, 1)},
    {BROKER: 1.0},
    {BUNDLE: 1.0},
    b"joint",
    (BalancePoint(at_ms=1, gap=1.0, largest=1.0, bound=1.0),),
)
ENCODED: Final[Mapping[str, bytes]] = {
    znodes.LEADER: encode_leader(LeaderRecord(broker=BROKER, service_url="url")),
    znodes.agent(BROKER, 0): encode_agent(AgentRecord()),
    znodes.registration(BROKER): encode_registration(REPORT),
    znodes.loads(BROKER): encode_loads(REPORT),
    znodes.owned(BROKER): encode_owned({BUNDLE: 1}, [BUNDLE]),
    znodes.orders(BROKER): encode_orders(
        Orders(1, frozenset({BUNDLE}), {BUNDLE: BROKER}, {BUNDLE: SplitOrder("text", (1,))})
    ),
    znodes.draining(BROKER): encode_drain_mark(DrainMark(drain=False)),
    znodes.STATE: encode_standby(STATE),
    znodes.BALANCING: encode_balancing(Balancing(mode=BalancingMode.ACTIVE)),
    znodes.lock(BUNDLE): encode_lock(
        LockRecord(urls=URLS, broker=BROKER, listeners={"{listener}": URLS})
    ),
    znodes.local_policies(NAMESPACE): encode_boundaries(WHOLE),
    znodes.policies(NAMESPACE): encode_policies({}, WHOLE, "standalone"),
    f"{znodes.POLICIES}/{{tenant}}": encode_tenant("standalone"),
    znodes.partitions(TOPIC): encode_partitions(2),
}
"""The content of the nodes that have an encoder of their own."""

PLAIN: Final[Mapping[str, str]] = {
    znodes.EPOCH: "the number of elections is the version of the node",
    znodes.KEY: "the cluster's key, at least 32 bytes",
    znodes.ATTACH_PAUSED: "text",
    f"{znodes.ATTACH_CANDIDATES}/{BROKER}": "empty",
    znodes.CONFIGURATION: "Pulsar's form",
    znodes.isolation_policies("{cluster}"): "Pulsar's form",
    f"{znodes.failure_domains('{cluster}')}/{{domain}}": "Pulsar's form",
}
"""The content of the others."""


def node_lines() -> Iterator[tuple[str, str]]:
    yield "format", str(FORMAT)
    for path, text in PLAIN.items():
        yield _named(path), text
    for path, content in {**ENCODED, **asyncio.run(_written())}.items():
        yield _named(path), "JSON"
        for name, kind in _shape(unpacked_object(path, content, 1 << 20)):
            yield f"{_named(path)} {_named(name)}", kind


async def _written() -> dict[str, bytes]:
    session = MemoryCoordination(MemoryService())
    await connected(session)
    await agree(session, SystemClock(), Conditions("crc32", kind="pulsar"))
    shared = SharedState(session)
    await shared.write(
        PriorSettings(format=1, dynamic={"{setting}": "text"}, effective={"{setting}": "x"})
    )
    await StoredBudget(MoveBudget(MoveLimits()), shared).store([BUNDLE])
    course = Course()
    course.add(BalancePoint(at_ms=60_000, gap=0.5, largest=1.5, bound=1.0))
    await course.store(shared, 60_000)
    targets = HeldTargets(shared)
    targets.add(BROKER, "why")
    await targets.refresh()
    cordons, cluster = Cordons(shared), PulsarCluster(name="", brokers=(BROKER, BrokerId("b:1")))
    await cordons.put(cluster, BROKER, Cordon(drain=True, since_ms=1, by="text"))
    await cordons.marked(cluster)
    await cordons.note({BROKER: {BUNDLE: "{reason}"}})
    await shared.know(["http://broker:1"])
    found = {}
    stored = [one.value[1] for one in Part if one is not Part.PAUSED]
    for path in (znodes.CLUSTER, *stored):
        node = await session.get(path)
        assert node is not None
        found[path] = node.data
    await session.close()
    return found


def _shape(value: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping) and inner:
            yield from _shape(inner, f"{prefix}{name}.")
        else:
            # A number of a format is what readers of other versions go by.
            fixed = not prefix and name in {"format", "version"}
            yield f"{prefix}{name}", str(inner) if fixed else _kind(inner)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return f"list of {' or '.join(dict.fromkeys(map(_kind, value))) or 'any'}"
    kinds = {str: "text", bool: "flag", int: "number", float: "number", type(None): "null"}
    return kinds.get(type(value), "object")


def _named(text: str) -> str:
    return text.replace(RANGE, "{range}").replace("broker:1", "{broker}")
