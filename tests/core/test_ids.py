"""Names, paths and bundles, and where a topic is looked up."""

import re
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core import znodes
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END, crc32, murmur3, position
from loadmanager.core.hosts import host_of, is_http_url, is_loopback, unreachable
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    belongs_to_a_broker,
    bundle_id,
    namespace_of,
    parse_broker,
    parse_bundle,
    parse_full_topic,
    parse_namespace,
    parse_topic,
    range_of,
    topic_from_parts,
)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *(
            (parse_broker, one)
            for one in ("broker-1:8080", "[::1]:80", "10.0.0.7:65535", "a_b.c:1")
        ),
        *((parse_namespace, one) for one in ("t/n", "a-b=c:d.e_f/1", ".../.a", "..a/a..")),
    ],
)
def test_a_name_is_itself(parse: Callable[[str], str], text: str) -> None:
    assert parse(text) == text


NAMES: dict[Callable[[str], object], tuple[str, list[str]]] = {
    parse_broker: (
        "is not valid; expected host:port",
        ["", "a", "a:", "a:0", "a:65536", "a b:80", ":80", "é:80", "a:8\uff10"],
    ),
    parse_namespace: (
        "namespace",
        ["t", "t/", "/n", "t/c/n", "t /n", "t/n@", "./n", "t/.", "../n", "t/..", "t/..\n"],
    ),
    parse_bundle: (
        r"bundle .* is not valid; expected tenant/namespace/0x",
        ["t/n", "t/n/0x0_0x1", "t/n/0x0000000A_0x0000000B"]
        + [f"t/n/0x0000000{lower}_0x00000001" for lower in (1, 2)]
        + [f"{one}/0x00000000_0x00000001" for one in ("n", "t/c/n", "../n", "t/.", "t/n@")]
        + ["t/n/0x00000000_0x00000001\n"],
    ),
    parse_topic: ("topic", ["a/b", "persistent://t/c/n/x", "http://t/n/x", "persistent://t"]),
    parse_full_topic: (
        "is not valid",
        ["x", "t/n/x", "persistent://t/n", "persistent://t/n/", "http://t/n/x", "topic://../n/x"],
    ),
}


@pytest.mark.parametrize(
    ("parse", "says", "text"),
    [(parse, says, text) for parse, (says, texts) in NAMES.items() for text in texts],
)
def test_anything_else_is_refused(parse: Callable[[str], object], says: str, text: str) -> None:
    with pytest.raises(InvalidName, match=says):
        parse(text)


@given(st.integers(0, 0xFFFFFFFE), st.integers(1, 0xFFFFFFFF))
def test_a_bundle_tells_what_it_was_made_of(lower: int, width: int) -> None:
    upper = min(lower + width, 0xFFFFFFFF)
    made = bundle_id(Namespace("tenant/ns"), lower, upper)
    assert parse_bundle(made) == made
    assert range_of(made) == (lower, upper)
    assert namespace_of(made) == "tenant/ns"


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("x", "persistent://public/default/x"),
        ("t/n/x", "persistent://t/n/x"),
        ("non-persistent://t/n/x-partition-3", "non-persistent://t/n/x-partition-3"),
        ("topic://t/n/x", "topic://t/n/x"),
    ],
)
def test_a_short_topic_name_means_a_full_one(text: str, full: str) -> None:
    assert str(parse_topic(text)) == full


@given(st.text(min_size=1).filter(lambda local: bool(local.strip())))
def test_a_full_name_tells_the_topic_it_was_made_of(local: str) -> None:
    topic = topic_from_parts("non-persistent", "t", "n", local)
    assert parse_full_topic(str(topic)) == topic


def test_a_topic_from_a_path_may_hold_a_slash() -> None:
    assert str(topic_from_parts("persistent", "t", "n", "a/b")) == "persistent://t/n/a/b"


def test_a_blank_topic_is_refused() -> None:
    with pytest.raises(InvalidName, match="a name that is not blank"):
        topic_from_parts("persistent", "t", "n", " ")


@pytest.mark.parametrize(
    ("namespace", "own"),
    [
        ("pulsar/host:8080", True),
        ("sla-monitor/a.b:1", True),
        ("pulsar/system", False),
        ("pulsar/functions-host", False),
        ("other/host:8080", False),
    ],
)
def test_heartbeat_bundles_belong_to_their_broker(namespace: str, own: bool) -> None:
    assert belongs_to_a_broker(BundleId(f"{namespace}/0x00000000_0xffffffff")) is own


def test_a_long_text_is_shortened_in_the_message() -> None:
    with pytest.raises(InvalidName, match=re.escape("... (5002 characters) is not valid")):
        parse_broker("x" * 5000)


NAMESPACE = Namespace("t/n")

bounds = st.sets(st.integers(1, FULL_RANGE_END - 1), max_size=20).map(
    lambda inner: (0, *sorted(inner), FULL_RANGE_END)
)


@given(bounds, st.integers(0, FULL_RANGE_END))
def test_every_position_lies_in_the_bundle_that_holds_it(cuts: tuple[int, ...], at: int) -> None:
    lower, upper = range_of(Boundaries(NAMESPACE, cuts).at(at))
    assert lower <= at < upper or at == upper == FULL_RANGE_END


@given(bounds, bounds)
def test_a_bundle_is_in_boundaries_with_it(cuts: tuple[int, ...], others: tuple[int, ...]) -> None:
    made = Boundaries(NAMESPACE, cuts)
    for bundle in Boundaries(NAMESPACE, others).bundles:
        assert (bundle in made) == (bundle in made.bundles)
    assert all(bundle in made for bundle in made.bundles)
    assert not any(bundle in made for bundle in Boundaries(Namespace("t/m"), cuts).bundles)


@given(st.integers(1, 5000))
def test_even_bundles_are_of_one_width_and_the_last_takes_the_rest(count: int) -> None:
    made = Boundaries.even(NAMESPACE, count)
    widths = [upper - lower for lower, upper in pairwise(made.bounds)]
    assert len(made.bundles) == count
    assert {*widths[:-1]} <= {2**32 // count}
    assert widths[-1] >= 2**32 // count - 1


@pytest.mark.parametrize("count", [0, -1, 2**32])
def test_a_count_that_cannot_be_is_refused(count: int) -> None:
    with pytest.raises(InvalidName, match="bundle count"):
        Boundaries.even(NAMESPACE, count)


@pytest.mark.parametrize(
    "cuts",
    [(), (0,), (0, 5), (1, FULL_RANGE_END), (0, 5, 5, FULL_RANGE_END), (0, 6, 5, FULL_RANGE_END)],
)
def test_bounds_that_do_not_tile_the_circle_are_refused(cuts: tuple[int, ...]) -> None:
    with pytest.raises(InvalidName, match="growing bounds"):
        Boundaries(NAMESPACE, cuts)


def test_crc32_is_that_of_pulsar() -> None:
    assert crc32("123456789") == 0xCBF43926


def test_murmur3_is_the_x86_one_with_seed_zero() -> None:
    assert murmur3("") == 0
    assert murmur3("hello") == 0x248BFA47
    assert murmur3("abc") == 0xB3DD93FA


def test_the_domain_is_part_of_what_is_hashed() -> None:
    one, other = parse_topic("persistent://t/n/x"), parse_topic("non-persistent://t/n/x")
    assert position(one, "crc32") != position(other, "crc32")
    assert position(one, "crc32") == crc32("persistent://t/n/x")


def test_paths_are_those_pulsar_uses() -> None:
    broker = BrokerId("b1:8080")
    bundle = BundleId("t/ns/0x00000000_0x80000000")
    assert znodes.LEADER == "/loadbalance/leader"
    assert znodes.registration(broker) == "/loadbalance/brokers/b1:8080"
    assert znodes.loads(broker) == "/loadbalance/loads/b1:8080"
    assert znodes.owned(broker) == "/loadbalance/owned/b1:8080"
    assert znodes.orders(broker) == "/loadbalance/orders/b1:8080"
    assert znodes.draining(broker) == "/loadbalance/draining/b1:8080"
    assert znodes.lock(bundle) == "/namespace/t/ns/0x00000000_0x80000000"
    assert znodes.local_policies(Namespace("t/ns")) == "/admin/local-policies/t/ns"
    assert znodes.lock(bundle) == f"{znodes.lock_folder(bundle)}/0x00000000_0x80000000"
    assert znodes.policies(Namespace("t/ns")) == "/admin/policies/t/ns"
    assert znodes.partitioned_topics(Namespace("t/ns")) == "/admin/partitioned-topics/t/ns"
    assert znodes.agent(broker, 0x1F) == f"{znodes.agents(broker)}/1f"
    assert znodes.agents(broker) == f"{znodes.AGENTS}/b1:8080"
    clusters = "/admin/clusters/standalone"
    assert znodes.isolation_policies("standalone") == f"{clusters}/namespaceIsolationPolicies"
    assert znodes.failure_domains("standalone") == f"{clusters}/failureDomain"


def test_a_topic_with_a_slash_is_one_node() -> None:
    topic = topic_from_parts("persistent", "t", "ns", "a/b c")
    assert znodes.partitions(topic) == "/admin/partitioned-topics/t/ns/persistent/a%2Fb%20c"


def test_what_is_reached_on_the_same_machine_alone() -> None:
    here = ("localhost", "LOCALHOST.", "127.0.0.1", "127.8.9.10", "::1", "[::1]", "::1%lo")
    for host in (*here, "::ffff:127.0.0.1"):
        assert is_loopback(host), host
    named = ("broker1", "localhost.example.com", "127.0.0.1.example.com", "")
    for host in ("::ffff:10.0.0.1", "10.0.0.1", "fe80::1", "0.0.0.0", *named):  # noqa: S104 - judged, not listened on
        assert not is_loopback(host), host


def test_the_host_of_a_url_or_of_a_broker_s_id() -> None:
    texts = ("http://b1:8080", "https://[::1]:8080", "b1:8080", "[fe80::1]:8080", "http://[::1", "")
    assert [host_of(text) for text in texts] == ["b1", "::1", "b1", "fe80::1", "", ""]


LOCAL = BrokerId("localhost:8080")
REMOTE = BrokerId("b2:8080")


def test_a_loopback_url_leads_elsewhere_on_another_host() -> None:
    why = unreachable("http://127.0.0.1:7750", [LOCAL, BrokerId("b9:8080"), REMOTE])
    assert "advertised_url is http://127.0.0.1:7750" in why
    assert "b2:8080" in why


@pytest.mark.parametrize(
    ("url", "brokers"),
    [
        ("http://127.0.0.1:7750", []),
        ("http://localhost:7750", [LOCAL, BrokerId("127.0.0.1:8081"), BrokerId("[::1]:8081")]),
        ("http://b1:7750", [LOCAL, REMOTE]),
        ("", [REMOTE]),
    ],
)
def test_a_url_that_everybody_reaches_is_no_trouble(url: str, brokers: list[BrokerId]) -> None:
    assert unreachable(url, brokers) == ""


@pytest.mark.parametrize(
    ("text", "is_url", "without_path"),
    [
        ("https://broker-1", True, True),
        ("http://[::1]:8080/", True, True),
        ("http://broker-1:8080/admin", True, False),
        ("http://broker-1:0", False, False),
        ("http://[::1", False, False),
        ("http:///admin", False, False),
        ("pulsar://broker-1:6650", False, False),
    ],
)
def test_what_is_a_url_of_http(text: str, is_url: bool, without_path: bool) -> None:
    assert is_http_url(text) is is_url
    assert is_http_url(text, without_path=True) is without_path
