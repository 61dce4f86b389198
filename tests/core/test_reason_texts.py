from enum import StrEnum

import pytest

from loadmanager.core.plan import Cause, Reason
from loadmanager.core.reason_texts import CAUSES, REASONS, sentence


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_and_says_what_it_would_take(reason: Reason) -> None:
    told = REASONS[reason]
    assert sentence(reason) == told.meaning
    assert told.meaning.endswith(".")
    assert told.remedy.endswith(".")


@pytest.mark.parametrize("cause", Cause)
def test_every_cause_has_a_sentence(cause: Cause) -> None:
    assert sentence(cause) == CAUSES[cause]
    assert CAUSES[cause].endswith(".")


@pytest.mark.parametrize(("kind", "table"), [(Reason, REASONS), (Cause, CAUSES)])
def test_nothing_is_told_of_no_reason(kind: type[StrEnum], table: dict[StrEnum, object]) -> None:
    assert list(table) == list(kind)


def test_a_reason_and_a_cause_of_the_same_word_are_told_apart() -> None:
    assert sentence(Reason.DRAINING) != sentence(Cause.DRAINING)
