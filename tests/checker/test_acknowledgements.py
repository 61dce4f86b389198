from collections.abc import Sequence
from dataclasses import replace

import pytest
from plain_spells import NAMESPACE, TOPIC, publish, quarters, spell

from loadmanager.reference_broker.changes import ServingInterval
from tests.testbed.checker.acknowledgements import Misplaced, Why, misplaced
from tests.testbed.checker.publishes import Publish

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
