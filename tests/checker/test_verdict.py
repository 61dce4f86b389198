from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_spells import NAMESPACE, TOPIC, WHOLE, publish, quarters, spell

from loadmanager.core.ids import Namespace, bundle_id, namespace_of, range_of
from loadmanager.reference_broker.changes import EndReason, ServingInterval, overlaps
from tests.testbed.checker.availability import Disturbance
from tests.testbed.checker.publishes import Publish, publishes_in
from tests.testbed.checker.verdict import (
    History,
    Misplaced,
    Use,
    Why,
    judge,
    misplaced,
    token_faults,
)

KILL = Disturbance(what="kill b1", began_s=8, healed_s=8, within_s=4)
GOOD = History(
    intervals=[spell(0, 9, token=3), spell(11, 30, by="b2", token=5)],
    publishes=[publish(5, token=3), publish(15, by="b2", token=5)],
    hash_name="murmur3",
    bundles=[WHOLE],
    from_s=1,
    until_s=20,
    disturbances=[KILL],
    hand_over_s=0.5,
)


@pytest.mark.parametrize(
    ("broken", "found"),
    [
        (
            replace(GOOD, intervals=[spell(0, 11.5, token=3), GOOD.intervals[1]]),
            "was served by b1:8080 (token 3) and b2:8080 (token 5) from 11.000 s to 11.500 s",
        ),
        (
            replace(GOOD, publishes=[publish(12, token=3)]),
            "its broker did not serve the bundle under that token then",
        ),
        (
            replace(GOOD, intervals=[GOOD.intervals[0], spell(11, 30, by="b2", token=2)]),
            "b2:8080 began t/n/0x00000000_0xffffffff under token 2",
        ),
        (replace(GOOD, disturbances=[]), "was not served for 2.000 s from 9.000 s"),
        (replace(GOOD, disturbances=[replace(KILL, within_s=2.9)]), "was not served"),
        (
            replace(GOOD, disturbances=[replace(KILL, brokers=frozenset({"b2:8080"}))]),
            "which b1:8080 lost, was not served for 2.000 s from 9.000 s",
        ),
    ],
    ids=["two owners", "no owner", "token back", "free", "free too long", "another was hit"],
)
def test_a_broken_history_is_caught(broken: History, found: str) -> None:
    assert list(judge(GOOD).violations) == []
    assert any(found in violation for violation in judge(broken).violations)


def test_what_a_client_wrote_comes_back_but_for_half_a_last_line() -> None:
    sent = [publish(5), replace(publish(5), status=0, acknowledgement=None)]
    text = "".join(f"{one.to_line()}\n" for one in sent)
    assert list(publishes_in(text + sent[0].to_line()[:30])) == sent


ALONE = [spell(1, 9)]
TWO = [spell(1, 9), spell(4, 12, by="b2", token=2)]
PART = spell(4, 12, by="b2", token=2, bundle=quarters(2, 3))
OWN_PART = spell(4, 12, token=2, bundle=quarters(2, 3))
THIRD = [spell(1, 9, bundle=quarters(2, 3))]


@pytest.mark.parametrize(
    ("spells", "message", "why"),
    [
        (ALONE, publish(5), None),
        # The instants of load and of unload belong to the owner.
        (ALONE, publish(1), None),
        (ALONE, publish(9), None),
        (ALONE, publish(0.9), Why.NOT_SERVING),
        (ALONE, publish(9.1), Why.NOT_SERVING),
        (ALONE, publish(5, token=2), Why.NOT_SERVING),
        (ALONE, publish(5, by="b2"), Why.NOT_SERVING),
        (ALONE, publish(5, bundle=quarters(2, 4)), Why.NOT_SERVING),
        (TWO, publish(5), Why.NEWER_OWNER),
        (TWO, publish(5, by="b2", token=2), None),
        (TWO, publish(3), None),
        ([*ALONE, PART], publish(5), Why.NEWER_OWNER),
        ([*ALONE, OWN_PART], publish(5), None),
        (ALONE, replace(publish(5), broker="b2:8080"), Why.OTHER_BROKER),
        (THIRD, publish(5, bundle=quarters(2, 3)), None),
        *(
            (THIRD, publish(5, bundle=quarters(2, 3), topic=topic), Why.OTHER_BUNDLE)
            for topic in ("persistent://t/other/sales", "persistent://t/n/x", "sales")
        ),
        (ALONE, replace(publish(5), sent_s=5.1), Why.OTHER_TIME),
        (ALONE, replace(publish(5), answered_s=4.9), Why.OTHER_TIME),
        ([], replace(publish(5), status=421, acknowledgement=None), None),
    ],
)
def test_a_message_taken_by_somebody_who_did_not_own_its_topic_is_found(
    spells: Sequence[ServingInterval], message: Publish, why: Why | None
) -> None:
    assert [one.why for one in misplaced(spells, [message], "murmur3")] == [why] * (why is not None)
    assert TOPIC.startswith(f"persistent://{NAMESPACE}/")


def test_the_fault_is_told_with_topic_broker_and_grant() -> None:
    told = str(Misplaced(publish(5), Why.NOT_SERVING))
    assert all(part in told for part in (TOPIC, "b1:8080", "fencing_token=1"))


@pytest.mark.parametrize(
    ("spells", "messages", "pairs"),
    [
        ([spell(1, 2), spell(3, 4, by="b2", token=5), spell(5, 6, token=9)], [], []),
        ([spell(3, 4, by="b2", token=5), spell(1, 2, token=7)], [], [(7, 5)]),
        ([spell(1, 2, token=7), spell(3, 4, token=8), spell(5, 6, by="b2", token=7)], [], [(8, 7)]),
        ([spell(1, 2, token=7), spell(3, 4, token=7)], [], []),
        ([spell(1, 2, token=7), spell(3, 4, by="b2", token=7)], [], [(7, 7)]),
        ([spell(1, 2, token=7), spell(3, 4, token=5, bundle=quarters(1, 2))], [], [(7, 5)]),
        ([spell(1, 2, token=7, bundle=quarters(0, 2)), spell(3, 4, bundle=quarters(2, 4))], [], []),
        ([], [publish(5, token=7), publish(6, by="b2", token=5)], [(7, 5)]),
        (
            [spell(1, 2, token=7), spell(2, 3, token=6), spell(0, 1, bundle=quarters(1, 2))],
            [],
            [(7, 6)],
        ),
    ],
    ids=[
        "they grow",
        "lower than the one before",
        "lower though others came in between",
        "a broker begins again under its own",
        "two brokers under one",
        "a part lower than the whole",
        "neighbours have their own",
        "a message under a lower one",
        "told once for all parts",
    ],
)
def test_a_token_below_one_before_it_is_found(
    spells: list[ServingInterval], messages: list[Publish], pairs: list[tuple[int, int]]
) -> None:
    faults = token_faults(spells, messages)
    found = [(one.earlier.fencing_token, one.later.fencing_token) for one in faults]
    assert found == pairs


def test_a_message_taken_after_a_newer_owner_began_is_found() -> None:
    spells = [spell(1, 9, token=1), spell(4, 9, by="b2", token=2)]
    (fault,) = token_faults(spells, [publish(5, token=1)])
    assert str(fault) == (
        "b1:8080 took a message of t/n/0x00000000_0xffffffff under token 1 at 5.000 s, "
        "after b2:8080 began t/n/0x00000000_0xffffffff under 2 at 4.000 s"
    )
    assert fault.earlier == Use(
        at_s=4, fencing_token=2, broker="b2:8080", bundle=quarters(0, 4), what="began"
    )


QUARTER = 0x40000000
BOUNDS = [0, QUARTER, 2 * QUARTER, 3 * QUARTER, 0xFFFFFFFF]


def interval(
    start_s: int, length_s: int, quarters: tuple[int, int], incarnation: str, namespace: str
) -> ServingInterval:
    lower, upper = quarters
    return ServingInterval(
        broker=f"{incarnation}:8080",
        incarnation=incarnation,
        bundle=bundle_id(Namespace(namespace), BOUNDS[lower], BOUNDS[upper]),
        fencing_token=1,
        agent_epoch=1,
        start_s=start_s,
        end_s=start_s + length_s,
        why=EndReason.UNLOADED,
    )


def by_hand(intervals: list[ServingInterval]) -> set[frozenset[int]]:
    """Return the offending pairs by trying every second and every quarter of the circle."""
    found = set()
    for left, right in combinations(intervals, 2):
        if left.incarnation == right.incarnation:
            continue
        for second, quarter in product(range(20), range(4)):
            if serves(left, second, quarter) & serves(right, second, quarter):
                found.add(frozenset({left.fencing_token, right.fencing_token}))
    return found


def serves(one: ServingInterval, second: int, quarter: int) -> set[Namespace]:
    lower, upper = range_of(one.bundle)
    within = lower <= quarter * QUARTER < upper and one.start_s <= second < one.end_s
    return {namespace_of(one.bundle)} if within else set()


intervals = st.builds(
    interval,
    st.integers(0, 9),
    st.integers(0, 6),
    st.sampled_from([*combinations(range(5), 2)]),
    st.sampled_from(["i1", "i2", "i3"]),
    st.sampled_from(["t/n", "t/m"]),
)


@settings(max_examples=150)
@given(served=st.lists(intervals, max_size=7))
def test_overlaps_are_exactly_those_found_by_hand(served: list[ServingInterval]) -> None:
    # Told apart by their place in the list: equal ones must be found as often as they are.
    named = [replace(one, fencing_token=place) for place, one in enumerate(served)]
    found = overlaps(named)
    pairs = [frozenset({one.first.fencing_token, one.second.fencing_token}) for one in found]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == by_hand(named)
    for one in found:
        assert one.start_s == max(one.first.start_s, one.second.start_s)
        assert one.end_s == min(one.first.end_s, one.second.end_s)
