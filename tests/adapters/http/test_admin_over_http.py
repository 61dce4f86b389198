"""The admin REST over HTTP, on the real application and an in-process coordination service."""

import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from leader_at_work import LeaderAtWork, leader_at_work
from recorded_unloads import RecordedUnloads
from snapshot_samples import report
from waiting import eventually

from loadmanager.adapters.http.assign_client import HttpAssignClient, topics_from, topics_to_json
from loadmanager.adapters.http.routes import Route, text_reply
from loadmanager.admin.brokers import BalancingModes, Brokers, Configuration
from loadmanager.admin.decisions import Plans
from loadmanager.admin.isolation import FailureDomains, Isolation
from loadmanager.admin.namespaces import AntiAffinity, Quotas
from loadmanager.admin.topics import Partitions, Topics
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config import Config, load_config
from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.fields import parse_fields
from loadmanager.core.hashing import position
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.ports.lookup import Unavailable
from tests.adapters.http.conftest import FakeLookup, Reply, RunningServer, StartServer

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
NS = Namespace("acme/prod")
FOUR = Boundaries.even(NS, 4)
FIRST = FOUR.bundles[0].rpartition("/")[2]
JSON = {"Content-Type": "application/json"}
V2 = "/admin/v2"
GOLD = f"{V2}/clusters/east/namespaceIsolationPolicies/gold"
RACK = f"{V2}/clusters/east/failureDomains/rack-1"
CONFIGURATION = f"{V2}/brokers/configuration"
GROUP = f"{V2}/namespaces/{NS}/antiAffinity"
QUOTA = f"{V2}/resource-quotas/{NS}/{FIRST}"
POLICY = {
    "namespaces": ["acme/.*"],
    "primary": ["b1"],
    "secondary": [],
    "auto_failover_policy": {
        "policy_type": "min_available",
        "parameters": {"min_limit": "1", "usage_threshold": "80"},
    },
    "unload_scope": "none",
}


@dataclass
class FakeTopics(HttpAssignClient):
    open: dict[str, dict[BundleId, dict[TopicName, Rates]]]

    async def topics(
        self, sidecar_url: str, namespace: Namespace
    ) -> dict[BundleId, dict[TopicName, Rates]]:
        assert namespace == NS
        if sidecar_url not in self.open:
            raise Unavailable(f"the sidecar at {sidecar_url} does not answer")
        return self.open[sidecar_url]


class ToldSettings(RuntimeSettings):
    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.told: list[Mapping[str, str]] = []

    def changed(self, values: Mapping[str, str]) -> None:
        self.told.append(values)


@dataclass
class Api:
    server: RunningServer
    sidecar: LeaderAtWork
    line: FakeTopics
    settings: ToldSettings

    async def send(self, method: str, path: str, value: Any = None) -> Reply:
        if value is None:
            return await self.server.ask(path, method)
        return await self.server.ask(path, method, data=json.dumps(value), headers=JSON)

    async def get(self, path: str) -> Any:
        got = await self.server.ask(path)
        assert got.status == 200, got.text
        return got.json()


@pytest.fixture
async def api(start_server: StartServer) -> AsyncIterator[Api]:
    planner = Planner(settings=PlannerSettings(settle_s=0.0))
    async with leader_at_work(planner, round_interval_s=3600) as sidecar:
        parts, line = sidecar.context, FakeTopics({})
        topics = Topics(parts, line)
        config = load_config(None, {"LOADMANAGER_BROKER__ID": "b1:8080"})
        resources = (
            Brokers(parts, "east", topics),
            Configuration(parts, config, {"zookeeperServers": "z:2181"}),
            AntiAffinity(parts, "east"),
            topics,
            Isolation(parts, sidecar.leading, RecordedUnloads().unload, "east"),
            FailureDomains(parts, "east"),
            Quotas(),
            BalancingModes(parts),
            Plans(sidecar.leading),
        )
        routes = tuple(route for one in resources for route in one.routes())
        yield Api(await start_server(more_routes=routes), sidecar, line, ToldSettings(config))


@pytest.fixture
async def loaded(api: Api) -> Api:
    """Return it with a namespace, of which two brokers own two bundles each."""
    await api.sidecar.create_namespace(FOUR)
    await api.sidecar.report(
        report(B1, 0.2, dict.fromkeys(FOUR.bundles[:2], 1e6)),
        replace(
            report(B2, 0.1, dict.fromkeys(FOUR.bundles[2:], 1e6)), sidecar_url="http://b2:7750"
        ),
    )
    return api


async def test_brokers_and_what_they_own_are_told(loaded: Api) -> None:
    assert await loaded.get(f"{V2}/brokers") == await loaded.get(f"{V2}/brokers/east") == [B1, B2]
    owned = await loaded.get(f"{V2}/brokers/east/{B2}/ownedNamespaces")
    free = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
    assert owned == dict.fromkeys(FOUR.bundles[2:], free)
    described = (await loaded.get("/openapi.json"))["components"]["schemas"]["OwnedBundle"]
    assert set(described["properties"]) == set(described["required"]) == set(free)
    assert (await loaded.send("GET", f"{V2}/brokers/west")).status == 404
    assert (await loaded.send("GET", f"{V2}/brokers/east/b9:1/ownedNamespaces")).status == 404
    assert (await loaded.send("GET", f"{V2}/brokers/east/b9/ownedNamespaces")).status == 412
    load = await loaded.get(f"{V2}/broker-stats/load-report")
    assert (load["brokerId"], load["numBundles"]) == (B1, 2)
    internal = await loaded.get(f"{V2}/brokers/internal-configuration")
    assert internal == {"zookeeperServers": "z:2181"}


async def test_a_broker_that_is_not_registered_has_no_load_report(api: Api) -> None:
    assert (await api.send("GET", f"{V2}/broker-stats/load-report")).status == 503


async def test_isolation_policies_are_set_told_and_removed(loaded: Api) -> None:
    assert (await loaded.send("GET", GOLD)).status == 404
    assert (await loaded.send("POST", GOLD, POLICY)).status == 204
    assert await loaded.get(GOLD) == POLICY
    every = await loaded.get(f"{V2}/clusters/east/namespaceIsolationPolicies")
    assert set(every) == {"gold"}
    about = {"brokerName": B1, "policyName": "gold", "isPrimary": True}
    about["namespaceRegex"] = ["acme/.*"]
    brokers = f"{V2}/clusters/east/namespaceIsolationPolicies/brokers"
    assert await loaded.get(brokers) == [about]
    assert await loaded.get(f"{brokers}/{B1}") == about
    assert (await loaded.send("GET", f"{brokers}/{B2}")).status == 404
    assert [(await loaded.send("DELETE", GOLD)).status for _ in range(2)] == [204, 404]


def without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def with_parameters(**parameters: Any) -> dict[str, Any]:
    failover = {"policy_type": "min_available", "parameters": parameters}
    return {**POLICY, "auto_failover_policy": failover}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "said"),
    [
        ("POST", GOLD, without(POLICY, "primary"), 400, "primary = "),
        ("POST", GOLD, {**POLICY, "namespaces": []}, 400, "namespaces = []"),
        ("POST", GOLD, {**POLICY, "primary": ["b1("]}, 400, "RE2 does not support 'b1('"),
        ("POST", GOLD, {**POLICY, "namespaces": ["(?!a).*"]}, 400, "invalid perl operator: (?!"),
        ("POST", GOLD, {**POLICY, "secondary": "b2"}, 400, "secondary = 'b2'"),
        ("POST", GOLD, with_parameters(min_limit="1"), 400, "usage_threshold"),
        ("POST", GOLD, with_parameters(min_limit=1, usage_threshold="8"), 400, "min_limit = 1"),
        ("POST", GOLD, with_parameters(min_limit="-1", usage_threshold="8"), 400, "min_limit"),
        ("POST", GOLD, None, 400, "the body is missing"),
        ("POST", GOLD, [], 400, "as a whole = []"),
        ("POST", GOLD.replace("east", "west"), POLICY, 404, "cluster west does not exist"),
        ("POST", GOLD.replace("gold", "a%20b"), POLICY, 412, "policy 'a b' is not valid"),
        ("POST", GOLD.replace("gold", "%2E%2E"), POLICY, 412, "policy '..' is not valid"),
        ("POST", RACK, {"brokers": ["b1"]}, 400, "brokers.0 = 'b1'"),
        ("POST", RACK, {"brokers": ["b1:99999"]}, 412, "host:port"),
        ("POST", RACK, {}, 400, "brokers = {}"),
        ("POST", RACK.replace("rack-1", "..%2F..%2Fx"), {"brokers": []}, 412, "failure_domain"),
        ("POST", GOLD, with_parameters(min_limit="9" * 400, usage_threshold="8"), 400, "min_limit"),
        ("POST", GOLD, with_parameters(min_limit="1", usage_threshold="4e307"), 400, "_threshold"),
        ("GET", f"{V2}/loadmanager/plan?seed={10**400}", None, 400, "seed = "),
        ("GET", f"{V2}/loadmanager/plan?limit={2**62}", None, 400, "limit = "),
        ("POST", GROUP, 7, 400, "as a whole = 7"),
        ("POST", GROUP, "", 400, "as a whole = ''"),
        ("POST", GROUP.replace("prod", "none"), "fragile", 404, "does not exist"),
        ("POST", f"{CONFIGURATION}/broker.id/x", None, 412, "Cannot update non-dynamic"),
        ("POST", f"{CONFIGURATION}/nothing/x", None, 412, "Cannot update non-dynamic"),
        ("POST", f"{CONFIGURATION}/shedding.enabled/perhaps", None, 412, "Invalid dynamic-config"),
        ("DELETE", f"{CONFIGURATION}/nothing", None, 412, "Cannot update non-dynamic"),
        ("PUT", f"{V2}/loadmanager/balancing/sleep", None, 404, "nothing at this path"),
        ("GET", f"{V2}/loadmanager/plan?shedder=none", None, 503, "no leader is at work"),
        ("GET", f"{V2}/loadmanager/plan?mode=bold", None, 400, "mode = 'bold'"),
        ("GET", f"{V2}/namespaces/{NS}/topics?mode=SOME", None, 400, "mode = 'SOME'"),
        ("GET", f"{V2}/namespaces/{NS}/topics?mode=%ff", None, 400, "UTF-8"),
        ("GET", f"{V2}/namespaces/west/antiAffinity/x", None, 412, "not this one, east"),
        ("GET", f"{V2}/namespaces/east/antiAffinity/x?property=a%2Fb", None, 412, "namespace"),
    ],
)
async def test_what_is_wrong_is_refused_and_changes_nothing(
    loaded: Api, method: str, path: str, *, body: Any, status: int, said: str
) -> None:
    got = await loaded.send(method, path, body)
    assert got.status == status, got.text
    assert said in got.json()["reason"]
    for node in (
        znodes.isolation_policies("east"),
        znodes.CONFIGURATION,
        f"{znodes.failure_domains('east')}/rack-1",
    ):
        assert await loaded.sidecar.hand.get(node) is None


async def test_a_body_of_another_type_is_refused(loaded: Api) -> None:
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    got = await loaded.server.ask(GOLD, "POST", data=json.dumps(POLICY), headers=form)
    assert (got.status, got.json()["reason"]) == (
        415,
        "the body is application/x-www-form-urlencoded; expected application/json",
    )
    for fine in ("application/json; charset=utf-8", "application/vnd.x+json"):
        headers = {"Content-Type": fine}
        got = await loaded.server.ask(GOLD, "POST", data=json.dumps(POLICY), headers=headers)
        assert got.status == 204


async def test_other_methods_are_told_which_there_are(loaded: Api) -> None:
    got = await loaded.send("PATCH", GOLD)
    assert (got.status, got.headers["Allow"]) == (405, "GET, POST, DELETE")
    got = await loaded.send("OPTIONS", GOLD)
    assert (got.status, got.headers["Allow"], got.text) == (204, "GET, POST, DELETE", "")
    assert (await loaded.send("HEAD", f"{V2}/brokers")).status == 200
    assert (await loaded.send("HEAD", GOLD)).status == 404


async def test_failure_domains_are_set_told_and_removed(loaded: Api) -> None:
    assert (await loaded.send("POST", RACK, {"brokers": [B1]})).status == 204
    assert await loaded.get(RACK) == {"brokers": [B1]}
    other = RACK.replace("rack-1", "rack-2")
    assert (await loaded.send("POST", other, {"brokers": [B1, B2]})).status == 409
    every = await loaded.get(f"{V2}/clusters/east/failureDomains")
    assert every == {"rack-1": {"brokers": [B1]}}
    assert (await loaded.send("GET", other)).status == 404
    assert [(await loaded.send("DELETE", RACK)).status for _ in range(2)] == [204, 404]


async def test_pulsars_tools_are_told_that_there_are_no_quotas(loaded: Api) -> None:
    for path in (f"{V2}/resource-quotas", QUOTA):
        for method, body in (("GET", None), ("POST", {"memory": 5})):
            got = await loaded.send(method, path, body)
            assert (got.status, "no resource quotas" in got.json()["reason"]) == (410, True)
    assert (await loaded.send("DELETE", QUOTA)).status == 410


async def test_groups_are_set_told_and_reset(loaded: Api) -> None:
    assert (await loaded.send("GET", GROUP)).status == 204
    assert (await loaded.send("POST", GROUP, "fragile")).status == 204
    assert (await loaded.send("GET", GROUP)).text == "fragile"
    members = f"{V2}/namespaces/east/antiAffinity/fragile"
    assert await loaded.get(f"{members}?property=acme") == await loaded.get(members) == [NS]
    assert (await loaded.send("DELETE", GROUP)).status == 204
    assert await loaded.get(members) == []


async def test_settings_are_set_for_all_told_and_taken_back(api: Api) -> None:
    told = api.settings.told
    api.settings.open(api.sidecar.context)
    try:
        name, ours = "loadBalancerSheddingExcludedNamespaces", "shedding.excluded_namespaces"
        assert {name, ours} <= set(await api.get(CONFIGURATION))
        assert (await api.send("POST", f"{CONFIGURATION}/{name}/acme%2Fprod")).status == 204
        assert await api.get(f"{CONFIGURATION}/values") == {name: "acme/prod"}
        runtime = await api.get(f"{CONFIGURATION}/runtime")
        assert runtime[ours] == '["acme/prod"]'
        assert runtime["broker.id"] == B1
        await eventually(lambda: told and told[-1] == {name: "acme/prod"})
        for _ in range(2):
            assert (await api.send("DELETE", f"{CONFIGURATION}/{name}")).status == 204
        assert await api.get(f"{CONFIGURATION}/values") == {}
        await eventually(lambda: told[-1] == {})
    finally:
        api.settings.close()


async def test_spoilt_settings_are_told_to_nobody(api: Api) -> None:
    told = api.settings.told
    await api.sidecar.hand.create(znodes.CONFIGURATION, b'{"shedding.enabled":"false"}')
    api.settings.open(api.sidecar.context)
    await eventually(lambda: told)
    await api.sidecar.hand.set(znodes.CONFIGURATION, b'{"shedding.enabled":1}')
    kind = {"kind": "configuration"}
    count = "loadmanager_malformed_content_total"
    await eventually(lambda: api.sidecar.registry.get_sample_value(count, kind) == 1)
    assert told == [{"shedding.enabled": "false"}]
    assert (await api.send("GET", f"{CONFIGURATION}/values")).status == 503
    api.settings.close()


async def test_the_leader_is_paused_and_goes_on(api: Api) -> None:
    balancing = f"{V2}/loadmanager/balancing"
    assert (await api.get(balancing))["mode"] == "active"
    for word, mode in (("pause", "paused"), ("observe", "observing"), ("resume", "active")):
        assert (await api.send("PUT", f"{balancing}/{word}?by=ann&reason=why")).status == 204
        told = await api.get(balancing)
        assert (told["mode"], told["by"], told["reason"]) == (mode, "ann", "why")


async def test_a_plan_is_told_in_codes_and_words(loaded: Api) -> None:
    loaded.sidecar.lead()
    await eventually(
        lambda: loaded.sidecar.leading.leader_term and loaded.sidecar.leader_term.look().averages
    )
    plan = await loaded.get(f"{V2}/loadmanager/plan?set=moves_per_round%3D3&limit=1")
    assert plan["inForce"]["planner"]["moves_per_round"] == 3
    assert (plan["balancing"]["mode"], len(plan["refusals"])) == ("active", 1)
    assert plan["refusalsInAll"] >= 1
    assert plan["refusals"][0]["meaning"].endswith(".")
    now, later = plan["optimality"], plan["withMoves"]
    assert now["bound"] == later["bound"] <= later["largest"] <= now["largest"]
    got = await loaded.send("GET", f"{V2}/loadmanager/plan?set=threshold")
    assert (got.status, "set=threshold; expected key=value" in got.text) == (412, True)


async def test_topics_of_all_brokers_and_partitions_are_told(loaded: Api) -> None:
    there = TopicName("non-persistent", NS, "there")
    loaded.line.open["http://b2:7750"] = {FOUR.bundles[2]: {there: Rates()}}
    partitions = Partitions(FakeLookup(), loaded.sidecar.context)
    await partitions.create(TopicName("persistent", NS, "p/q"), 2)
    path = f"{V2}/namespaces/{NS}/topics"
    persistent = [f"persistent://{NS}/p/q-partition-{number}" for number in range(2)]
    assert await loaded.get(path) == persistent
    assert await loaded.get(f"{path}?mode=ALL") == [str(there), *persistent]
    assert await loaded.get(f"{path}?mode=NON_PERSISTENT") == [str(there)]
    loaded.line.open.clear()
    assert (await loaded.send("GET", path)).status == 503


async def test_positions_of_topics_are_told(loaded: Api) -> None:
    topics = [TopicName("persistent", NS, f"t{number}") for number in range(12)]
    names = ",".join(topic.local for topic in topics[:-1])
    path = f"{V2}/namespaces/{NS}/{FIRST}/topicHashPositions"
    told = await loaded.get(f"{path}?topics={names}&topics=persistent://{NS}/t11")
    assert told["hashPositions"] == {
        str(topic): position(topic, "crc32")
        for topic in topics
        if position(topic, "crc32") < 0x40000000
    }
    assert told["hashPositions"] != {}
    assert (told["namespace"], told["bundle"]) == (NS, FIRST)
    assert await loaded.get(path) == {"namespace": NS, "bundle": FIRST, "hashPositions": {}}
    got = await loaded.send("GET", f"{path}?topics=persistent://other/ns/t")
    assert (got.status, "is not in namespace acme/prod" in got.text) == (412, True)
    unknown = path.replace(FIRST, "0x00000000_0x12345678")
    assert (await loaded.send("GET", unknown)).status == 404


def test_topics_are_told_and_understood_alike() -> None:
    topic = TopicName("persistent", NS, "a/b")
    traffic = Rates(msgs_in_per_s=1.5, bytes_out_per_s=7.0)
    topics = {FOUR.bundles[0]: {topic: traffic}, FOUR.bundles[1]: {}}
    document = json.dumps(topics_to_json(topics)).encode()
    assert topics_from(parse_fields("x", document)) == topics


@pytest.mark.parametrize("spoilt", ["[]", '{"acme/prod":{"0x0":{}}}', '{"acme/prod":7}', "{"])
async def test_anothers_odd_answer_is_no_answer(start_server: StartServer, spoilt: str) -> None:
    async def odd(_request: Any, _target: Any) -> Any:
        return text_reply(spoilt)

    server = await start_server(more_routes=(Route("GET", "/admin/v2/broker-stats/topics", odd),))
    line = HttpAssignClient()
    try:
        with pytest.raises(Unavailable):
            await line.topics(server.url, NS)
        with pytest.raises(Unavailable, match="does not answer"):
            await line.topics("http://127.0.0.1:1", NS)
    finally:
        await line.close()


async def test_a_sidecar_tells_its_own_brokers_topics_to_others(loaded: Api) -> None:
    line = HttpAssignClient()
    try:
        # The in-process broker serves none of them: it was told of no lock.
        assert await line.topics(loaded.server.url, NS) == {}
    finally:
        await line.close()
    assert await loaded.get(f"{V2}/broker-stats/topics") == {}
