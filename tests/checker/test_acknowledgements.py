from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_spells import NAMESPACE, TOPIC, WHOLE, publish, quarters, spell

from loadmanager.core.ids import BundleId
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


bundles = st.sampled_from([quarters(*pair) for pair in combinations(range(5), 2)])
brokers = st.sampled_from(["b1", "b2", "b3"])
spells = st.builds(
    lambda start, length, by, token, bundle: spell(
        start, start + length, by=by, token=token, bundle=bundle
    ),
    st.integers(0, 9),
    st.integers(0, 6),
    brokers,
    st.integers(1, 4),
    bundles,
)
messages = st.builds(
    lambda at, by, token, bundle: publish(at + 0.25, by=by, token=token, bundle=bundle),
    st.integers(0, 14),
    brokers,
    st.integers(1, 4),
    bundles,
)


def by_hand(served: list[ServingInterval], message: Publish) -> bool:
    """Return whether the message is right, by asking who held the topic's quarter then."""
    said = message.acknowledgement
    assert said is not None
    held = [
        (one.fencing_token, one.incarnation, one.bundle)
        for one in served
        if one.start_s < said.clock_s < one.end_s
    ]
    mine = (said.fencing_token, said.incarnation, said.bundle)
    rivals = [
        token
        for token, who, bundle in held
        if who != said.incarnation and set(quarters_of(bundle)) & set(quarters_of(said.bundle))
    ]
    return mine in held and 2 in quarters_of(said.bundle) and all(t <= mine[0] for t in rivals)


def quarters_of(bundle: BundleId) -> range:
    pairs = combinations(range(5), 2)
    return next(range(*pair) for pair in pairs if quarters(*pair) == bundle)


@settings(max_examples=300)
@given(served=st.lists(spells, max_size=6), sent=st.lists(messages, min_size=1, max_size=4))
def test_misplaced_messages_are_exactly_those_found_by_hand(
    served: list[ServingInterval], sent: list[Publish]
) -> None:
    found = [one.publish for one in misplaced(served, sent, "murmur3")]
    assert found == [one for one in sent if not by_hand(served, one)]


def test_the_samples_topic_lies_in_the_third_quarter() -> None:
    assert why([spell(1, 9, bundle=quarters(2, 3))], publish(5, bundle=quarters(2, 3))) is None
    assert TOPIC.startswith(f"persistent://{NAMESPACE}/")
    assert quarters_of(WHOLE) == range(4)
