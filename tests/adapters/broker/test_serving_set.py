import pytest

from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import parse_bundle, parse_topic
from loadmanager.reference_broker.memory_broker import BundleTraffic, Served, ServingSet

LOWER, UPPER, WHOLE = (
    parse_bundle(f"t/n/{bounds}")
    for bounds in ("0x00000000_0x80000000", "0x80000000_0xffffffff", "0x00000000_0xffffffff")
)


def serving(hash_name: HashName, *bundles: str) -> ServingSet:
    """Return a set with these bundles, of which each has a larger token than the one before."""
    made = ServingSet(hash_name)
    for token, bundle in enumerate(map(parse_bundle, bundles), 1):
        made.add(Served(bundle, token, 1, 0.0, BundleTraffic(2.0, 0.0)))
    return made


@pytest.mark.parametrize("hash_name", ["murmur3", "crc32"])
def test_a_topic_is_found_by_the_hash_that_was_chosen(hash_name: HashName) -> None:
    topics = [parse_topic(f"t/n/topic-{number}") for number in range(50)]
    found = [topic for topic in topics if serving(hash_name, UPPER).find(topic)]
    assert found == [topic for topic in topics if position(topic, hash_name) >= 0x80000000]
    assert 0 < len(found) < 50


# Chosen because their CRC-32 is the bound, and the one position that no half-open range holds.
@pytest.mark.parametrize(
    ("name", "at"), [("eogimeacameea", 0x80000000), ("igakiagoaeaea", 0xFFFFFFFF)]
)
def test_a_position_on_a_bound_belongs_to_the_bundle_above_it(name: str, at: int) -> None:
    topic = parse_topic(f"persistent://t/n/{name}")
    assert position(topic, "crc32") == at
    assert serving("crc32", LOWER).find(topic) is None
    both = serving("crc32", UPPER, LOWER)
    assert both.find(topic) is both.get(UPPER)
