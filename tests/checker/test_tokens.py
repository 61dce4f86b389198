import pytest
from plain_spells import publish, quarters, spell

from loadmanager.reference_broker.changes import ServingInterval
from tests.testbed.checker.publishes import Publish
from tests.testbed.checker.tokens import Use, token_faults


@pytest.mark.parametrize(
    ("spells", "messages", "pairs"),
    [
        ([spell(1, 2), spell(3, 4, by="b2", token=5), spell(5, 6, token=9)], [], []),
        ([spell(3, 4, by="b2", token=5), spell(1, 2, token=7)], [], [(7, 5)]),
        (
            [spell(1, 2, token=7), spell(3, 4, token=8), spell(5, 6, by="b2", token=7)],
            [],
            [(8, 7)],
        ),
        ([spell(1, 2, token=7), spell(3, 4, token=7)], [], []),
        ([spell(1, 2, token=7), spell(3, 4, by="b2", token=7)], [], [(7, 7)]),
        ([spell(1, 2, token=7), spell(3, 4, token=5, bundle=quarters(1, 2))], [], [(7, 5)]),
        (
            [spell(1, 2, token=7, bundle=quarters(0, 2)), spell(3, 4, bundle=quarters(2, 4))],
            [],
            [],
        ),
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
