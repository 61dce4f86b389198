import pytest

from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import BundleId, TopicName, parse_bundle, parse_topic
from loadmanager.reference_broker.memory_broker import BundleTraffic, Served, ServingSet

LOWER = parse_bundle("t/n/0x00000000_0x80000000")
UPPER = parse_bundle("t/n/0x80000000_0xffffffff")
WHOLE = parse_bundle("t/n/0x00000000_0xffffffff")


def served(bundle: BundleId, fencing_token: int = 1) -> Served:
    return Served(
        bundle=bundle,
        fencing_token=fencing_token,
        agent_epoch=1,
        start_s=0.0,
        traffic=BundleTraffic(2.0, 0.0),
    )


@pytest.mark.parametrize("hash_name", ["murmur3", "crc32"])
def test_a_topic_is_found_by_the_hash_that_was_chosen(hash_name: HashName) -> None:
    serving = ServingSet(hash_name)
    serving.add(served(UPPER))
    topics = [parse_topic(f"t/n/topic-{number}") for number in range(50)]
    found = [topic for topic in topics if serving.find(topic) is not None]
    assert found == [topic for topic in topics if position(topic, hash_name) >= 0x80000000]
    assert 0 < len(found) < 50


def test_a_position_on_a_bound_belongs_to_the_bundle_above_it() -> None:
    # Chosen because its CRC-32 is the bound.
    topic = parse_topic("persistent://t/n/eogimeacameea")
    assert position(topic, "crc32") == 0x80000000
    serving = ServingSet("crc32")
    serving.add(served(LOWER))
    assert serving.find(topic) is None
    upper = served(UPPER)
    serving.add(upper)
    assert serving.find(topic) is upper


def test_the_last_position_belongs_to_the_last_bundle() -> None:
    # Chosen because its CRC-32 is the one position that no half-open range holds.
    topic = parse_topic("persistent://t/n/igakiagoaeaea")
    assert position(topic, "crc32") == 0xFFFFFFFF
    serving = ServingSet("crc32")
    upper = served(UPPER)
    serving.add(upper)
    assert serving.find(topic) is upper


def test_of_two_bundles_with_a_topic_the_newest_token_has_it() -> None:
    serving = ServingSet("murmur3")
    older, newer = served(WHOLE, fencing_token=1), served(UPPER, fencing_token=2)
    topics = [parse_topic(f"t/n/topic-{number}") for number in range(50)]
    for one in (newer, older):
        serving.add(one)
    found = {serving.find(topic) is newer for topic in topics if _is_upper(topic)}
    assert found == {True}


def _is_upper(topic: TopicName) -> bool:
    return position(topic, "murmur3") >= 0x80000000
