import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from coordination_worlds import connected
from leader_at_work import LeaderAtWork, leader_at_work
from recorded_unloads import RecordedUnloads
from snapshot_samples import report
from waiting import eventually

from loadmanager.adapters.http.assign_client import HttpAssignClient
from loadmanager.admin.brokers import Brokers
from loadmanager.admin.isolation import (
    FailureDomain,
    FailureDomains,
    Isolation,
    IsolationPolicy,
)
from loadmanager.admin.namespaces import AntiAffinity, GroupQuery, Namespaces
from loadmanager.admin.topics import Partitions, Topics
from loadmanager.common.documents import Documents
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace, TopicName
from loadmanager.core.planner import Planner
from loadmanager.core.wire.policies import (
    decode_boundaries,
    decode_failure_domain,
    decode_isolation,
)
from loadmanager.ports.coordination import Check, Operation, SetData
from loadmanager.ports.lookup import (
    Conflict,
    Missing,
    NamespaceTaken,
    NamespaceUnknown,
    Unavailable,
    Unfit,
)
from tests.adapters.http.conftest import FakeLookup
from tests.testbed.memory import MemoryCoordination, MemoryService

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NS = Namespace("acme/prod")
FOUR = Boundaries.even(NS, 4)
POLICY = {
    "namespaces": ["acme/.*"],
    "primary": ["b1"],
    "secondary": ["b2"],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
    "unload_scope": "none",
}


def policy(**changed: Any) -> IsolationPolicy:
    return IsolationPolicy.model_validate({**POLICY, **changed})


def domain(*brokers: BrokerId) -> FailureDomain:
    return FailureDomain(brokers=list(brokers))


@pytest.fixture
async def sidecar() -> AsyncIterator[LeaderAtWork]:
    async with leader_at_work(Planner(), round_interval_s=3600) as at_work:
        yield at_work


@pytest.fixture
def namespaces(sidecar: LeaderAtWork) -> Namespaces:
    return Namespaces(sidecar.context, sidecar.leading, "east")


async def stored(sidecar: LeaderAtWork, path: str) -> Any:
    node = await sidecar.hand.get(path)
    return None if node is None else json.loads(node.data)


async def test_a_namespace_stands_where_a_pulsar_broker_looks_for_it(
    sidecar: LeaderAtWork, namespaces: Namespaces
) -> None:
    await namespaces.put(FOUR, {"retention_policies": {"retentionSizeInMB": 3}})
    bounds = [f"0x{bound:08x}" for bound in FOUR.bounds]
    bundles = {"boundaries": bounds, "numBundles": 4}
    assert await stored(sidecar, "/admin/policies/acme") == {
        "adminRoles": [],
        "allowedClusters": ["east"],
    }
    assert await stored(sidecar, "/admin/policies/acme/prod") == {
        "replication_clusters": ["east"],
        "retention_policies": {"retentionSizeInMB": 3},
        "bundles": bundles,
    }
    assert await stored(sidecar, "/admin/local-policies/acme/prod") == {"bundles": bundles}
    assert await namespaces.of_tenant("acme") == (NS,)
    assert (await namespaces.policies(NS))["bundles"] == bundles


async def test_a_namespace_that_exists_in_any_form_is_not_created_again(
    sidecar: LeaderAtWork, namespaces: Namespaces
) -> None:
    await namespaces.put(FOUR, {})
    before = await stored(sidecar, znodes.local_policies(NS))
    with pytest.raises(NamespaceTaken):
        await namespaces.put(Boundaries.even(NS, 8), {})
    assert await stored(sidecar, znodes.local_policies(NS)) == before
    other = Namespace("acme/half")
    await sidecar.hand.create(znodes.policies(other), b"{}")
    with pytest.raises(NamespaceTaken):
        await namespaces.put(Boundaries.even(other, 8), {})
    assert await stored(sidecar, znodes.local_policies(other)) is None


async def test_of_several_who_create_a_namespace_one_does(namespaces: Namespaces) -> None:
    outcomes = await asyncio.gather(
        *(namespaces.put(Boundaries.even(NS, count), {}) for count in (2, 3, 4)),
        return_exceptions=True,
    )
    assert sorted(str(type(one)) for one in outcomes if one) == [str(NamespaceTaken)] * 2
    assert len([one for one in outcomes if one is None]) == 1


async def test_policies_tell_present_bundles(sidecar: LeaderAtWork, namespaces: Namespaces) -> None:
    await namespaces.put(FOUR, {"deduplicationEnabled": True})
    await sidecar.create_namespace(Boundaries.even(NS, 8))
    await eventually(
        lambda: (
            (known := sidecar.context.cluster_state.known_boundaries(NS))
            and len(known.bundles) == 8
        )
    )
    told = await namespaces.policies(NS)
    assert (told["deduplicationEnabled"], told["bundles"]["numBundles"]) == (True, 8)


async def test_refusals_change_nothing(sidecar: LeaderAtWork, namespaces: Namespaces) -> None:
    with pytest.raises(Missing, match="tenant nobody does not exist"):
        await namespaces.of_tenant("nobody")
    with pytest.raises(NamespaceUnknown):
        await namespaces.policies(NS)
    with pytest.raises(Unfit, match="expected at most 1000000"):
        await namespaces.put(FOUR, {"note": "x" * 1_000_000})
    assert await sidecar.hand.get(znodes.local_policies(NS)) is None
    await namespaces.put(FOUR, {})
    with pytest.raises(Unavailable, match="no leader is at work"):
        await namespaces.delete(NS, force=True)
    assert await stored(sidecar, znodes.policies(NS)) is not None
    await sidecar.context.coordination.close()
    with pytest.raises(Unavailable):
        await namespaces.put(Boundaries.even(Namespace("acme/more"), 4), {})


async def test_a_namespace_with_topics_is_deleted_only_by_force(
    sidecar: LeaderAtWork, namespaces: Namespaces
) -> None:
    await namespaces.put(FOUR, {})
    await sidecar.led(report(B1, 0.1, {FOUR.bundles[0]: 1e6}))
    await Partitions(FakeLookup(), sidecar.context).create(TopicName("persistent", NS, "p"), 3)
    with pytest.raises(Conflict, match="cannot delete non empty namespace"):
        await namespaces.delete(NS, force=False)
    assert await stored(sidecar, znodes.policies(NS)) is not None
    await sidecar.write(znodes.owned(B1), b'{"bundles":{}}')
    await namespaces.delete(NS, force=True)
    for path in (znodes.policies(NS), znodes.local_policies(NS), znodes.partitioned_topics(NS)):
        assert await sidecar.hand.get(path) is None
    with pytest.raises(NamespaceUnknown):
        await namespaces.delete(NS, force=True)
    assert await namespaces.of_tenant("acme") == ()


async def test_groups_stand_beside_bundles(sidecar: LeaderAtWork, namespaces: Namespaces) -> None:
    groups, path = AntiAffinity(sidecar.context, "east"), znodes.local_policies(NS)
    await namespaces.put(FOUR, {})
    await groups.put(NS, "fragile")
    assert await groups.members("east", "fragile", GroupQuery(tenant="other")) == []
    node = await sidecar.hand.get(path)
    assert node is not None
    assert decode_boundaries(path, NS, node.data, node.stat.version) == Boundaries(
        NS, FOUR.bounds, node.stat.version
    )
    await groups.remove(NS)
    await groups.remove(NS)
    assert await groups.group(NS) is None


async def test_isolation_policies_are_one_document_of_pulsars(sidecar: LeaderAtWork) -> None:
    isolation = Isolation(sidecar.context, sidecar.leading, RecordedUnloads().unload, "east")
    await isolation.put("east", "gold", policy())
    await isolation.put("east", "silver", policy(namespaces=["other/.*"]))
    path = "/admin/clusters/east/namespaceIsolationPolicies"
    document = await stored(sidecar, path)
    assert document["gold"] == POLICY
    assert set(decode_isolation(path, json.dumps(document).encode())) == {"gold", "silver"}
    await isolation.remove("east", "silver")
    with pytest.raises(Unavailable, match="no leader is at work"):
        await isolation.put("east", "iron", policy(unload_scope="changed"))
    assert set(await isolation.policies("east")) == {"gold"}
    await sidecar.write(path, b"[malformed")
    with pytest.raises(Unavailable, match="namespaceIsolationPolicies"):
        await isolation.put("east", "gold", policy())
    node = await sidecar.hand.get(path)
    assert node is not None
    assert node.data == b"[malformed"


@pytest.mark.parametrize(
    ("former", "scope", "leaving"),
    [
        (None, None, 2),
        (None, "changed", 2),
        (None, "none", 0),
        ({}, "changed", 0),
        ({}, "all_matching", 2),
        ({"namespaces": ["acme/test"]}, "changed", 2),
        ({"primary": ["b2"]}, "changed", 2),
        ({"secondary": []}, "changed", 0),
    ],
)
async def test_what_a_policy_newly_forbids_is_moved_and_nothing_else(
    sidecar: LeaderAtWork,
    namespaces: Namespaces,
    former: dict[str, Any] | None,
    *,
    scope: str | None,
    leaving: int,
) -> None:
    await namespaces.put(FOUR, {})
    other = Namespace("other/ns")
    await namespaces.put(Boundaries.even(other, 1), {})
    b3 = BrokerId("b3:8080")
    await sidecar.report(
        report(B1, 0.1, {FOUR.bundles[0]: 1.0}),
        report(B2, 0.1, {FOUR.bundles[1]: 1.0}),
        report(
            b3, 0.1, dict.fromkeys([*FOUR.bundles[2:], *Boundaries.even(other, 1).bundles], 1.0)
        ),
    )
    await sidecar.led()
    unloads = RecordedUnloads(refuses=leaving == 2)
    isolation = Isolation(sidecar.context, sidecar.leading, unloads.unload, "east")
    if former is not None:
        await isolation.put("east", "gold", policy(**former))
    assert unloads.asked == []
    await isolation.put("east", "gold", policy(unload_scope=scope))
    # b1 is primary and b2 secondary: what they have may stay, and other namespaces too.
    assert unloads.asked == list(FOUR.bundles[2:][:leaving])
    kept = {**POLICY, "unload_scope": scope}
    if scope is None:
        del kept["unload_scope"]
    assert await isolation.policies("east") == {"gold": kept}


async def test_each_broker_is_told_with_the_policies_about_it(
    sidecar: LeaderAtWork, namespaces: Namespaces
) -> None:
    await namespaces.put(FOUR, {})
    await sidecar.report(report(B1, 0.1, {FOUR.bundles[0]: 1.0}), report(B2, 0.1, {}))
    isolation = Isolation(sidecar.context, sidecar.leading, RecordedUnloads().unload, "east")
    await isolation.put("east", "gold", policy())
    told = await isolation.brokers("east")
    assert [(one.broker, one.is_primary) for one in told] == [(B1, True), (B2, False)]
    brokers = Brokers(sidecar.context, "east", Topics(sidecar.context, HttpAssignClient()))
    owned = await brokers.owned("east", B1)
    assert {bundle: one.assignment for bundle, one in owned.items()} == {FOUR.bundles[0]: "primary"}
    assert await brokers.owned("east", B2) == {}


async def test_a_broker_may_change_its_failure_domain(sidecar: LeaderAtWork) -> None:
    domains = FailureDomains(sidecar.context, "east")
    await domains.put("east", "rack-1", domain(B1, B1))
    path = "/admin/clusters/east/failureDomain/rack-1"
    assert decode_failure_domain(path, json.dumps(await stored(sidecar, path)).encode()) == (B1,)
    with pytest.raises(Conflict, match="is in failure domain rack-1 already"):
        await domains.put("east", "rack-2", domain(B2, B1))
    await domains.put("east", "rack-1", domain(B2))
    await domains.put("east", "rack-2", domain(B1))
    assert await domains.domains("east") == {"rack-1": domain(B2), "rack-2": domain(B1)}


async def test_of_several_domains_one_gets_a_broker(sidecar: LeaderAtWork) -> None:
    domains = FailureDomains(sidecar.context, "east")
    outcomes = await asyncio.gather(
        *(domains.put("east", name, domain(B1)) for name in ("a", "b", "c")), return_exceptions=True
    )
    assert [type(one) for one in outcomes if one] == [Conflict, Conflict]
    assert len(await domains.domains("east")) == 1


async def test_partitions_are_made_once_and_forgotten_once(
    sidecar: LeaderAtWork, namespaces: Namespaces
) -> None:
    partitions, topic = (
        Partitions(FakeLookup(), sidecar.context),
        TopicName("persistent", NS, "a/b"),
    )
    with pytest.raises(NamespaceUnknown):
        await partitions.create(topic, 3)
    await namespaces.put(FOUR, {})
    await partitions.create(topic, 3)
    path = "/admin/partitioned-topics/acme/prod/persistent/a%2Fb"
    assert await stored(sidecar, path) == {"partitions": 3}
    with pytest.raises(Conflict):
        await partitions.create(topic, 4)
    await partitions.remove(topic)
    with pytest.raises(Missing):
        await partitions.remove(topic)


async def test_changes_of_many_at_once_are_all_kept(sidecar: LeaderAtWork) -> None:
    documents = Documents(sidecar.context.coordination)

    def adding(name: str) -> Any:
        return lambda data: json.dumps([*json.loads(data or b"[]"), name]).encode()

    names = ["a", "b", "c", "d", "e"]
    await asyncio.gather(*(documents.change("/x/y", adding(name)) for name in names))
    assert sorted(await stored(sidecar, "/x/y")) == names


@pytest.mark.parametrize("lost", ["request", "reply"])
@pytest.mark.parametrize("what", ["created", "set", "deleted", "committed"])
async def test_a_write_whose_reply_was_lost_is_read_back(what: str, lost: str) -> None:
    session = MemoryCoordination(MemoryService())
    await connected(session)
    documents = Documents(session)
    if what != "created":
        await session.create("/doc", b"before")
    before = await documents.read("/doc")

    lose = session.lose_next_reply if lost == "reply" else session.lose_next_request

    async def write() -> None:
        if what == "committed":
            await documents.commit("both", both)
        else:
            await documents.change("/doc", edit)

    async def both() -> list[Operation]:
        lose()  # The next request is the write.
        return [SetData("/doc", b"after"), Check("/", -1)]

    def edit(_: bytes | None) -> bytes | None:
        lose()
        return None if what == "deleted" else b"after"

    if lost == "reply":
        await write()
        assert await documents.read("/doc") == (None if what == "deleted" else b"after")
    else:
        with pytest.raises(Unavailable, match="cannot be written"):
            await write()
        assert await documents.read("/doc") == before
