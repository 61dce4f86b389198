from dataclasses import replace

import pytest
from small_view import make_view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import to_json
from loadmanager.core.filters import Filters, version_rank
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.plan import Reason
from loadmanager.core.policies import NO_POLICIES, IsolationPolicy, Policies, open_to
from loadmanager.core.wire.policies import (
    decode_anti_affinity,
    decode_failure_domain,
    decode_isolation,
    isolation_to_json,
)

NAMESPACE = Namespace("t/n")
BUNDLE = bundle_id(NAMESPACE, 0, 16)
THREE = {"a:1": (0.5, {1: 1.0}), "b:1": (0.5, {2: 1.0}), "c:1": (0.5, {3: 1.0})}
IDLE: dict[str, tuple[float, dict[int, float]]] = {name: (0.5, {}) for name in THREE}


def refused(view: ClusterView, filters: Filters | None = None) -> dict[str, Reason]:
    found = (filters or Filters()).eligible(view, BUNDLE)
    assert len(found.rows) + len(found.refusals()) == len(view.brokers.names)
    return {refusal.subject: refusal.reason for refusal in found.refusals()}


def test_who_takes_nothing_has_a_reason() -> None:
    assert refused(make_view(THREE, {"b:1": {"draining": True}})) == {"b:1": Reason.DRAINING}
    assert refused(make_view(THREE, {"b:1": {"seen_s": -181.0}})) == {"b:1": Reason.REPORT_STALE}
    found = refused(make_view(THREE, {"b:1": {"persistent": False}}))
    assert found == {"b:1": Reason.DOMAIN_UNSUPPORTED}
    found = refused(make_view(THREE, {"b:1": {"topics": 50_001}}))
    assert found == {"b:1": Reason.TOO_MANY_TOPICS}


def test_too_many_topics_everywhere_refuse_nobody() -> None:
    view = make_view(THREE, {name: {"topics": 60_000} for name in THREE})
    assert refused(view) == {}


def test_the_newest_version_is_preferred_when_asked() -> None:
    versions = {"a:1": "3.2.10", "b:1": "3.2.9", "c:1": "4.0.0-rc1"}
    view = make_view(THREE, {name: {"version": text} for name, text in versions.items()})
    later = Filters(prefer_later_versions=True)
    assert refused(view, later) == {"a:1": Reason.OLDER_VERSION, "b:1": Reason.OLDER_VERSION}
    assert refused(view) == {}
    assert refused(make_view({}), later) == {}
    assert version_rank("3.2.10-SNAPSHOT") == (3, 2, 10)


def isolating(view: ClusterView, **given: object) -> ClusterView:
    policy = IsolationPolicy(**{"namespaces": ("t/.*",), "primary": ("a",), **given})  # type: ignore[arg-type]  # fields by name
    return replace(view, policies=Policies(isolation={"p": policy}))


@pytest.mark.parametrize(
    ("given", "left"),
    [
        ({}, {"a:1"}),
        ({"secondary": ("b",)}, {"a:1"}),
        ({"secondary": ("b",), "min_limit": 2}, {"a:1", "b:1"}),
        ({"secondary": ("b",), "usage_threshold": 0.4}, {"a:1", "b:1"}),
        ({"primary": ("x",)}, set()),
        ({"primary": ("a:1",)}, set()),
        ({"namespaces": ("other/.*",)}, {"b:1", "c:1"}),
        ({"namespaces": ("other/.*",), "primary": (), "secondary": ("a",)}, {"a:1", "b:1", "c:1"}),
    ],
)
def test_isolation_keeps_a_namespace_where_it_is(given: dict[str, object], left: set[str]) -> None:
    reasons = refused(isolating(make_view(THREE), **given))
    assert THREE.keys() - reasons.keys() == left
    assert {*reasons.values()} <= {Reason.ISOLATED}


def apart(view: ClusterView, **domains: str) -> ClusterView:
    groups = {Namespace(f"t/{name}"): group for name, group in (("n", "G"), ("x", "g"), ("y", "g"))}
    moved = {
        bundle_id(Namespace("t/x"), 0, 16): BrokerId("a:1"),
        bundle_id(Namespace("t/y"), 0, 16): BrokerId("a:1"),
        bundle_id(Namespace("t/y"), 16, 32): BrokerId("b:1"),
    }
    named = {BrokerId(f"{host}:1"): domain for host, domain in domains.items()}
    return replace(view, moved=moved, policies=Policies(anti_affinity=groups, domains=named))


def test_a_group_is_kept_on_different_brokers() -> None:
    view = apart(make_view(IDLE))
    assert refused(view) == {"a:1": Reason.ANTI_AFFINITY, "b:1": Reason.ANTI_AFFINITY}
    drained = apart(make_view(IDLE, {"c:1": {"draining": True}}))
    assert refused(drained)["a:1"] is Reason.ANTI_AFFINITY
    assert "b:1" not in refused(drained)


def test_a_group_is_spread_over_failure_domains_first() -> None:
    view = apart(make_view(IDLE), a="one", b="two", c="one")
    assert refused(view, Filters(failure_domains=True)) == {
        "a:1": Reason.FAILURE_DOMAIN,
        "c:1": Reason.FAILURE_DOMAIN,
    }
    everyone = apart(make_view(IDLE, {name: {"draining": True} for name in THREE}))
    assert {*refused(everyone, Filters(failure_domains=True)).values()} == {Reason.DRAINING}


def test_a_namespace_without_a_group_goes_anywhere() -> None:
    view = apart(make_view(THREE))
    assert len(Filters().eligible(view, BundleId("other/n/0x00000000_0x00000010")).rows) == 3


def test_even_spreading_counts_bundles_of_the_namespace() -> None:
    view = make_view(
        {"a:1": (0.9, {0: 1.0}), "b:1": (0.1, {1: 1.0, 2: 1.0}), "c:1": (0.1, {3: 1.0})}
    )
    # The bundle in question is a's own, so a has none besides.
    assert refused(view, Filters(even_bundles=True)) == {
        "b:1": Reason.MORE_OF_NAMESPACE,
        "c:1": Reason.MORE_OF_NAMESPACE,
    }


def test_of_two_policies_about_a_namespace_the_first_by_name_holds() -> None:
    policies = {
        name: IsolationPolicy(namespaces=("t/n",), primary=(name,)) for name in ("z", "b", "m")
    }
    governing = Policies(isolation=policies).governing(NAMESPACE)
    assert governing is not None
    assert governing.primary == ("b",)


def test_isolation_policies_decode_as_pulsar_writes_them() -> None:
    data = (
        b'{"p":{"namespaces":["t/.*"],"primary":["a.*"],"secondary":["b"],"auto_failover_policy":'
        b'{"policy_type":"min_available","parameters":{"min_limit":"2","usage_threshold":"80"}}}}'
    )
    assert decode_isolation("/i", data) == {
        "p": IsolationPolicy(
            namespaces=("t/.*",),
            primary=("a.*",),
            secondary=("b",),
            min_limit=2,
            usage_threshold=0.8,
        )
    }


@pytest.mark.parametrize(
    "policy",
    [
        '{"namespaces":["t/n",7]}',
        '{"namespaces":"t/n"}',
        '{"namespaces":["t/n", "\\ud800"]}',
        '{"namespaces":["t/n"],"primary":7}',
        '{"namespaces":["t/n"],"auto_failover_policy":{"parameters":{"min_limit":"-1"}}}',
        '{"namespaces":["t/n"],"auto_failover_policy":{"parameters":{"min_limit":"99999999999"}}}',
    ],
)
def test_an_isolation_policy_that_cannot_be_is_refused_alone(policy: str) -> None:
    good = '"q":{"namespaces":["t/q"],"primary":["a"]}'
    found = decode_isolation("/i", f'{{"p":{policy},{good}}}'.encode())
    again = {name: isolation_to_json(one) for name, one in found.items()}
    assert decode_isolation("/i", to_json(again)) == found
    policies = Policies(isolation=found)
    assert policies.governing(Namespace("t/q")) == found["q"]
    assert policies.refused.keys() == {"p"}
    why = policies.refusal(Namespace("t/n"))
    assert why.startswith("isolation policy p is refused: /i: p.")
    assert policies.refusal(Namespace("t/q")) == ""


def test_names_of_policies_begin_no_line_and_are_cut_where_they_are_shown() -> None:
    name = "a\\n\\u001b[2J" + "b" * 1_000
    policies = Policies(isolation=decode_isolation("/i", f'{{"{name}":{{"primary":7}}}}'.encode()))
    assert policies.refused.keys() == {r"a\n\x1b[2J" + "b" * 1_000}
    assert policies.refusals.startswith(r"isolation policy a\n\x1b[2Jbbb")
    assert policies.refusals.isprintable()
    assert len(policies.refusals) < 400


@pytest.mark.parametrize("policy", ["7", "[]", '{"namespaces":7}', '"x"', "null"])
def test_a_policy_of_no_form_is_named_and_binds_nobody(policy: str) -> None:
    policies = Policies(isolation=decode_isolation("/i", f'{{"p":{policy}}}'.encode()))
    assert policies.refused.keys() == (set() if policy == "null" else {"p"})
    assert policies.refusal(Namespace("t/n")) == ""


def test_groups_and_domains_decode() -> None:
    assert decode_anti_affinity("/p", b'{"namespaceAntiAffinityGroup":"g"}') == "g"
    assert decode_anti_affinity("/p", b'{"bundles":{}}') == ""
    assert decode_failure_domain("/d", b'{"brokers":["a:1","b:1"]}') == ("a:1", "b:1")
    with pytest.raises(MalformedContent, match="host:port"):
        decode_failure_domain("/d", b'{"brokers":["a"]}')


def test_a_policy_opens_its_primary_brokers_and_no_policy_those_that_are_primary_in_none() -> None:
    brokers = tuple(BrokerId(f"{name}:8080") for name in "abc")
    policy = IsolationPolicy(namespaces=("t/.*",), primary=("a",), secondary=("b",))
    policies = Policies(isolation={"p": policy})
    assert list(open_to(NO_POLICIES, None, brokers)) == [True, True, True]
    assert list(open_to(policies, policy, brokers)) == [True, False, False]
    assert list(open_to(policies, None, brokers)) == [False, True, True]
