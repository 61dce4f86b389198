"""What `loadmanager attach` asks of brokers in a round: docs/pulsar.md says it for 100 brokers."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_pulsar import FakeBroker, FakePulsar, running

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import Namespace
from loadmanager.pulsar.answers import ClusterReader, addresses
from loadmanager.pulsar.balancing import MOST_TENANTS, NewNamespaces, Observer
from loadmanager.pulsar.client import Access, PulsarAdmin
from loadmanager.pulsar.sampling import Hosts, Sampler

BROKERS, NAMESPACES = 10, 60
SETTINGS = "configuration/runtime"


@pytest.fixture
def large() -> Iterator[FakePulsar]:
    """Run brokers with one bundle of each of 60 namespaces, each of a tenant of its own."""
    brokers = [FakeBroker() for _ in range(BROKERS)]
    for number in range(NAMESPACES):
        bundles = Boundaries.even(Namespace(f"tenant-{number}/a"), BROKERS).bundles
        for broker, bundle in zip(brokers, bundles, strict=True):
            broker.owned.append(bundle)
    with running(FakePulsar(brokers)) as cluster:
        yield cluster


def asked(cluster: FakePulsar) -> Counter[str]:
    found: Counter[str] = Counter()
    for broker in cluster.brokers:
        for path in broker.asked:
            kind = re.sub(r"127[\d.:]+|tenant-\d+(/a)?", "*", path.removeprefix("/admin/v2/"))
            found[kind.removeprefix("brokers/")] += 1
        broker.asked.clear()
    return found


REPORT = "broker-stats/load-report"
EVERY_WINDOW = {
    "/metrics/": BROKERS,
    "research/*/ownedNamespaces": BROKERS,
    "research": 1,
    "configuration/values": 1,
    REPORT: BROKERS,
}
SEARCHED = {"clusters/research/namespaceIsolationPolicies": 1}


async def test_requests_of_a_round_are_bounded(large: FakePulsar, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    admin = PulsarAdmin(Access(token_file=token))
    reader = ClusterReader(admin, (large.url,))
    sampler, observer = Sampler(admin, addresses(reader.url), Hosts()), Observer(reader)
    placing = NewNamespaces(reader, observer.rules, observer.strategy.loads)

    async def window() -> Counter[str]:
        cluster = await reader.read()
        samples, missing = await sampler.sample(cluster)
        await observer.observe(cluster, samples, missing)
        return asked(large)

    first = await window()
    once = {
        SETTINGS: BROKERS + 1,
        "version": 1,
        REPORT: BROKERS,
        "/lookup/v2/topic/persistent/pulsar/*/healthcheck": BROKERS,
    }
    assert first == {**EVERY_WINDOW, **SEARCHED, **once}
    # Groups are read over several windows.
    assert await window() == {**EVERY_WINDOW, "namespaces/*/antiAffinity": 50}
    assert await window() == {**EVERY_WINDOW, "namespaces/*/antiAffinity": NAMESPACES - 50}
    assert await window() == EVERY_WINDOW
    reader.forget()
    assert await window() == {**EVERY_WINDOW, SETTINGS: BROKERS, "version": 1}
    cluster = await reader.read()
    samples, _ = await sampler.sample(cluster)
    asked(large)
    for _ in range(3):
        assert await placing.proposals(cluster, samples) == ()
        assert asked(large) == {"tenants": 1, "namespaces/*": MOST_TENANTS}
    await admin.close()
