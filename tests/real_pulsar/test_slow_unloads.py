"""Moves of bundles whose topics close slowly, or are served by nobody afterwards."""

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from signal import SIGCONT, SIGSTOP
from time import monotonic, sleep

import pytest
from attaching import PATIENCE_S
from pulsar_traffic import sending
from real_pulsar import CHOSEN, CLUSTER, VERSION, RealPulsar, marks, trial_cluster

from loadmanager.core.ids import parse_broker, parse_bundle, parse_full_topic
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.moves import SERVED_S, BrokerQueries, BundleMover, Outcome, Unload

pulsar = pytest.importorskip("pulsar", reason="needs pulsar-client: pip install pulsar-client")

pytestmark = marks(900)
MANY = 5_000


@pytest.fixture(scope="module", params=CHOSEN)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RealPulsar]:
    """Two brokers that split no bundle by themselves."""
    settings = {"loadBalancerAutoBundleSplitEnabled": "false"}
    folder = tmp_path_factory.mktemp("slow")
    with trial_cluster(folder, request.param, brokers=2, settings=settings) as made:
        yield made


@contextmanager
def frozen(cluster: RealPulsar, name: str) -> Iterator[None]:
    cluster.processes.signal(name, SIGSTOP)
    try:
        yield
    finally:
        cluster.processes.signal(name, SIGCONT)


def whole(cluster: RealPulsar, namespace: str, topics: list[str]) -> Unload:
    """Return the move of a namespace's only bundle to the broker that does not serve it."""
    bundle = f"{namespace}/0x00000000_0xffffffff"
    owner = next(number for number in (0, 1) if bundle in cluster.owned(number))
    names = tuple(map(parse_full_topic, topics))
    return Unload(
        bundle=parse_bundle(bundle),
        source=parse_broker(cluster.brokers[owner]),
        target=parse_broker(cluster.brokers[1 - owner]),
        topic=names[0],
        active=names[:3],
    )


def moved(
    cluster: RealPulsar, move: Unload, sent: Callable[[], None], served_s: float = SERVED_S
) -> Outcome:
    async def moving() -> Outcome:
        admin = PulsarAdmin(Access(change_timeout_s=2.0), known=set(cluster.brokers))
        brokers = [parse_broker(one) for one in cluster.brokers]
        queries = BrokerQueries(admin, lambda one: f"http://{one}", CLUSTER, lambda: brokers)
        mover = BundleMover(queries, cluster.manager == "modular", served_s=served_s)
        try:
            return await mover.move(move, sent=sent)
        finally:
            mover.over.set()
            await admin.close()

    return asyncio.run(moving())


def test_a_bundle_of_5000_topics_is_unloaded_once_and_followed(cluster: RealPulsar) -> None:
    namespace = "trial/many"
    cluster.create_namespace(namespace, 1)
    assert cluster.put(f"/admin/v2/persistent/{namespace}/wide/partitions", str(MANY)) == 204
    topics = [f"persistent://{namespace}/wide-partition-{number}" for number in range(3)]
    client = pulsar.Client(
        cluster.service_url,
        operation_timeout_seconds=300,
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    client.create_producer(f"persistent://{namespace}/wide", send_timeout_millis=0)
    unloads: list[None] = []
    # The order has no answer by then: brokers take longer to close so many.
    outcome = moved(cluster, whole(cluster, namespace, topics), lambda: unloads.append(None))
    client.shutdown()
    assert (outcome.state, len(unloads)) == ("serving", 1), outcome


# The extensible manager keeps its own states in a topic, which needs the bookie to move anything.
@pytest.mark.skipif(VERSION.startswith("2."), reason="Pulsar 2.10 loads topics without a bookie")
@pytest.mark.parametrize("cluster", ["modular"], indirect=True)
def test_topics_that_do_not_load_are_owned_and_not_served(cluster: RealPulsar) -> None:
    namespace = "trial/frozen"
    topics = [f"persistent://{namespace}/topic-{number}" for number in range(8)]
    cluster.create_namespace(namespace, 1)
    rates = dict.fromkeys(topics, 20.0)
    with sending(pulsar, cluster.service_url, rates, send_timeout_s=0) as sends:
        deadline_s = monotonic() + PATIENCE_S
        while sends.acknowledged < 10 * len(topics):
            assert monotonic() < deadline_s, sends
            sleep(0.1)
        move = whole(cluster, namespace, topics)
        with frozen(cluster, "bookie"):
            outcome = moved(cluster, move, lambda: None, served_s=5.0)
        assert outcome.state == "owned_not_served", outcome
        # They are served again as soon as their messages can be stored.
    assert sends.failed == []
