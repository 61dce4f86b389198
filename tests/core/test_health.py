"""Whether a broker counts as healthy, and whether it may be let off."""

from functools import reduce

from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.health import Health, HealthRules, after, may_be_let_off
from loadmanager.core.ids import BrokerId

RULES = HealthRules(unhealthy_after=3, healthy_after=2)


def _after(answers: str, start: Health | None = None) -> Health:
    """Return the belief after answers: ``+`` a good one, ``-`` a bad one."""
    return reduce(lambda h, one: after(RULES, h, good=one == "+"), answers, start or Health())


def test_failures_in_a_row_make_a_broker_unhealthy() -> None:
    assert _after("--").healthy
    assert not _after("---").healthy


def test_one_good_answer_between_failures_keeps_it_healthy() -> None:
    assert _after("--+--+--+").healthy


def test_an_unhealthy_one_needs_several_good_answers() -> None:
    sick = _after("---")
    assert not _after("+", sick).healthy
    assert not _after("+-+-+-", sick).healthy
    assert _after("++", sick).healthy


@given(st.text("+-", max_size=60))
def test_the_belief_changes_no_more_often_than_the_rules_allow(answers: str) -> None:
    beliefs = [_after(answers[:count]).healthy for count in range(len(answers) + 1)]
    changes = [i for i in range(1, len(beliefs)) if beliefs[i] is not beliefs[i - 1]]
    for change in changes:
        needed = RULES.healthy_after if beliefs[change] else RULES.unhealthy_after
        assert set(answers[change - needed : change]) == {"+" if beliefs[change] else "-"}


BROKERS = [BrokerId(f"b{number}:8080") for number in range(5)]


def test_a_single_sick_broker_among_others_may_go() -> None:
    assert may_be_let_off(BROKERS[4], BROKERS, [])
    assert may_be_let_off(BROKERS[1], BROKERS[:2], [])


def test_who_is_alone_stays() -> None:
    assert not may_be_let_off(BROKERS[0], BROKERS[:1], [])
    assert not may_be_let_off(BROKERS[0], [], [])


def test_at_most_half_may_go_and_all_agree_which() -> None:
    going = [b for b in BROKERS if may_be_let_off(b, BROKERS, [o for o in BROKERS if o != b])]
    assert going == BROKERS[:2]
