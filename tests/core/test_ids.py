import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import (
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
