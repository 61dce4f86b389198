from dataclasses import replace

import pytest
from plain_spells import NAMESPACE, TOPIC, publish, quarters, spell

from loadmanager.reference_broker.changes import ServingInterval
from tests.testbed.checker.acknowledgements import Misplaced, Why, misplaced
from tests.testbed.checker.publishes import Publish


def why(spells: list[ServingInterval], message: Publish) -> Why | None:
    found = misplaced(spells, [message], "murmur3")
    return found[0].why if found else None


def test_a_message_taken_by_its_owner_is_right() -> None:
    assert why([spell(1, 9)], publish(5)) is None


@pytest.mark.parametrize("at_s", [1, 9])
def test_the_instants_of_load_and_of_unload_belong_to_the_owner(at_s: float) -> None:
    assert why([spell(1, 9)], publish(at_s)) is None


@pytest.mark.parametrize(
    "message",
    [publish(0.9), publish(9.1), publish(5, token=2), publish(5, by="b2")],
    ids=["before", "after", "another grant", "another process"],
)
def test_a_message_taken_by_somebody_who_did_not_serve_is_found(message: Publish) -> None:
    assert why([spell(1, 9)], message) is Why.NOT_SERVING


def test_a_message_taken_for_a_bundle_that_was_not_loaded_is_found() -> None:
    assert why([spell(1, 9)], publish(5, bundle=quarters(2, 4))) is Why.NOT_SERVING


def test_a_message_taken_while_another_has_the_newer_grant_is_found() -> None:
    spells = [spell(1, 9), spell(4, 12, by="b2", token=2)]
    assert why(spells, publish(5)) is Why.NEWER_OWNER
    assert why(spells, publish(5, by="b2", token=2)) is None
    assert why(spells, publish(3)) is None


def test_the_newer_grant_of_a_part_counts_too() -> None:
    part = spell(4, 12, by="b2", token=2, bundle=quarters(2, 3))
    assert why([spell(1, 9), part], publish(5)) is Why.NEWER_OWNER


def test_a_process_that_has_the_newer_grant_itself_is_right() -> None:
    assert why([spell(1, 9), spell(4, 12, token=2, bundle=quarters(2, 3))], publish(5)) is None


def test_a_message_answered_by_another_broker_than_it_was_sent_to_is_found() -> None:
    assert why([spell(1, 9)], replace(publish(5), broker="b2:8080")) is Why.OTHER_BROKER


@pytest.mark.parametrize("topic", ["persistent://t/other/sales", "persistent://t/n/x", "sales"])
def test_a_message_taken_for_a_bundle_without_its_topic_is_found(topic: str) -> None:
    bundle = quarters(2, 3)
    message = publish(5, bundle=bundle, topic=topic)
    assert why([spell(1, 9, bundle=bundle)], message) is Why.OTHER_BUNDLE


def test_a_message_taken_at_another_time_than_it_was_under_way_is_found() -> None:
    assert why([spell(1, 9)], replace(publish(5), sent_s=5.1)) is Why.OTHER_TIME
    assert why([spell(1, 9)], replace(publish(5), answered_s=4.9)) is Why.OTHER_TIME


def test_a_message_that_was_refused_is_nobodys_fault() -> None:
    refused = replace(publish(5), status=421, acknowledgement=None)
    assert misplaced([], [refused], "murmur3") == []


def test_the_fault_is_told_with_topic_broker_and_grant() -> None:
    told = str(Misplaced(publish(5), Why.NOT_SERVING))
    assert TOPIC in told
    assert "b1:8080" in told
    assert "fencing_token=1" in told


def test_the_samples_topic_lies_in_the_third_quarter() -> None:
    assert why([spell(1, 9, bundle=quarters(2, 3))], publish(5, bundle=quarters(2, 3))) is None
    assert TOPIC.startswith(f"persistent://{NAMESPACE}/")
