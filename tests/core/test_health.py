"""Whether a broker counts as healthy, and whether it may be let off."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.health import Health, HealthRules, after, may_be_drained
from loadmanager.core.ids import BrokerId

RULES = HealthRules(unhealthy_after=3, healthy_after=2)


def _after(answers: str) -> Health:
    return reduce(lambda h, one: after(RULES, h, good=one == "+"), answers, Health())


def test_a_belief_changes_after_several_like_answers() -> None:
    assert all(_after(answers).healthy for answers in ("--", "--+--+--+", "---++"))
    assert not any(_after(answers).healthy for answers in ("---", "---+", "---+-+-+-"))


@given(st.text("+-", max_size=60))
def test_the_belief_changes_no_more_often_than_the_rules_allow(answers: str) -> None:
    beliefs = [_after(answers[:count]).healthy for count in range(len(answers) + 1)]
    changes = [i for i in range(1, len(beliefs)) if beliefs[i] is not beliefs[i - 1]]
    for change in changes:
        needed = RULES.healthy_after if beliefs[change] else RULES.unhealthy_after
        assert set(answers[change - needed : change]) == {"+" if beliefs[change] else "-"}


BROKERS = [BrokerId(f"b{number}:8080") for number in range(5)]


def test_a_single_sick_broker_among_others_may_go_and_who_is_alone_stays() -> None:
    assert may_be_drained(BROKERS[4], BROKERS, [])
    assert may_be_drained(BROKERS[1], BROKERS[:2], [])
    assert not may_be_drained(BROKERS[0], BROKERS[:1], [])
    assert not may_be_drained(BROKERS[0], [], [])


def test_at_most_half_may_go_and_all_agree_which() -> None:
    going = [b for b in BROKERS if may_be_drained(b, BROKERS, [o for o in BROKERS if o != b])]
    assert going == BROKERS[:2]
