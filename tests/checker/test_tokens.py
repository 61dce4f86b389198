from collections.abc import Iterator
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from plain_spells import publish, quarters, spell

from loadmanager.core.ids import range_of
from loadmanager.reference_broker.changes import ServingInterval
from tests.testbed.checker.tokens import TokenFault, Use, token_faults


def pairs(faults: list[TokenFault]) -> list[tuple[int, int]]:
    return [(one.earlier.fencing_token, one.later.fencing_token) for one in faults]


def test_tokens_that_grow_from_owner_to_owner_are_right() -> None:
    spells = [spell(1, 2, token=1), spell(3, 4, by="b2", token=5), spell(5, 6, token=9)]
    assert token_faults(spells, []) == []


def test_an_owner_with_a_lower_token_than_the_one_before_is_found() -> None:
    spells = [spell(3, 4, by="b2", token=5), spell(1, 2, token=7)]
    assert pairs(token_faults(spells, [])) == [(7, 5)]


def test_a_lower_token_is_found_though_others_came_in_between() -> None:
    spells = [spell(1, 2, token=7), spell(3, 4, token=8), spell(5, 6, by="b2", token=7)]
    assert pairs(token_faults(spells, [])) == [(8, 7)]


def test_a_broker_that_begins_again_under_its_own_token_is_right() -> None:
    assert token_faults([spell(1, 2, token=7), spell(3, 4, token=7)], []) == []


def test_two_brokers_under_one_token_are_found() -> None:
    spells = [spell(1, 2, token=7), spell(3, 4, by="b2", token=7)]
    assert pairs(token_faults(spells, [])) == [(7, 7)]


def test_a_part_may_not_have_a_lower_token_than_the_whole_before_it() -> None:
    whole, part = spell(1, 2, token=7), spell(3, 4, token=5, bundle=quarters(1, 2))
    assert pairs(token_faults([whole, part], [])) == [(7, 5)]


def test_neighbouring_bundles_have_tokens_of_their_own() -> None:
    spells = [spell(1, 2, token=7, bundle=quarters(0, 2)), spell(3, 4, bundle=quarters(2, 4))]
    assert token_faults(spells, []) == []


def test_a_message_taken_under_a_lower_token_than_one_before_is_found() -> None:
    messages = [publish(5, token=7), publish(6, by="b2", token=5)]
    assert pairs(token_faults([], messages)) == [(7, 5)]


def test_a_message_taken_after_a_newer_owner_began_is_found() -> None:
    spells = [spell(1, 9, token=1), spell(4, 9, by="b2", token=2)]
    (fault,) = token_faults(spells, [publish(5, token=1)])
    assert str(fault) == (
        "b1:8080 took a message of t/n/0x00000000_0xffffffff under token 1 at 5.000 s, "
        "after b2:8080 began t/n/0x00000000_0xffffffff under 2 at 4.000 s"
    )


def test_a_fault_that_shows_in_several_parts_of_the_circle_is_told_once() -> None:
    spells = [spell(1, 2, token=7), spell(2, 3, token=6), spell(0, 1, bundle=quarters(1, 2))]
    assert pairs(token_faults(spells, [])) == [(7, 6)]


spells = st.builds(
    lambda start, by, token, pair: spell(
        start, start + 1, by=by, token=token, bundle=quarters(*pair)
    ),
    st.integers(0, 99),
    st.sampled_from(["b1", "b2"]),
    st.integers(1, 5),
    st.sampled_from([*combinations(range(5), 2)]),
)


def faulty_by_hand(served: list[ServingInterval]) -> set[tuple[float, int]]:
    """Return when and under which token somebody began who must not, pair by pair."""
    return {(late.start_s, late.fencing_token) for late in served if any(_worse(late, served))}


def _worse(late: ServingInterval, served: list[ServingInterval]) -> Iterator[bool]:
    lower, upper = range_of(late.bundle)
    for early in served:
        other_lower, other_upper = range_of(early.bundle)
        shares = max(lower, other_lower) < min(upper, other_upper)
        if shares and early.start_s < late.start_s:
            lower_token = early.fencing_token > late.fencing_token
            same = early.fencing_token == late.fencing_token and early.broker != late.broker
            yield lower_token or same


@settings(max_examples=300)
@given(served=st.lists(spells, max_size=7, unique_by=lambda one: one.start_s))
def test_token_faults_are_those_found_by_comparing_every_pair(
    served: list[ServingInterval],
) -> None:
    found = {(one.later.at_s, one.later.fencing_token) for one in token_faults(served, [])}
    by_hand = faulty_by_hand(served)
    # The third broker under one token is compared with the first of them alone.
    assert found <= by_hand
    lower = {(at_s, token) for at_s, token in by_hand if (at_s, token) not in found}
    assert all(_shares_with_its_own(at_s, served) for at_s, _ in lower)


def _shares_with_its_own(at_s: float, served: list[ServingInterval]) -> bool:
    (late,) = [one for one in served if one.start_s == at_s]
    return any(one.broker == late.broker and one.start_s < at_s for one in served)


def test_a_use_knows_what_it_was() -> None:
    (fault,) = token_faults([spell(1, 2, token=7), spell(3, 4, token=5)], [])
    assert fault.earlier == Use(
        at_s=1, fencing_token=7, broker="b1:8080", bundle=quarters(0, 4), what="began"
    )
