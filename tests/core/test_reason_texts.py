import pytest

from loadmanager.core.plan import Cause, Reason


@pytest.mark.parametrize("one", [*Reason, *Cause])
def test_every_code_has_a_sentence_and_a_reason_what_it_would_take(one: Cause | Reason) -> None:
    assert one.meaning.endswith(".")
    assert one.takes.endswith(".") is isinstance(one, Reason)
    assert type(one)(one.value) is one


def test_a_reason_and_a_cause_of_the_same_word_are_told_apart() -> None:
    assert Reason.DRAINING.meaning != Cause.DRAINING.meaning
