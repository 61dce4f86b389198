"""What to do with a lookup, case by case."""

import pytest

from loadmanager.core.lookup import LeaderPlace, LookupMode, LookupStep, next_step

ANSWER, REDIRECT = LookupMode.ANSWER, LookupMode.REDIRECT
HERE, ELSEWHERE, NOWHERE = LeaderPlace.HERE, LeaderPlace.ELSEWHERE, LeaderPlace.NOWHERE


@pytest.mark.parametrize("mode", LookupMode)
@pytest.mark.parametrize("leader", LeaderPlace)
@pytest.mark.parametrize("authoritative", [False, True])
def test_an_owned_bundle_is_answered_wherever_it_is_asked(
    mode: LookupMode, leader: LeaderPlace, authoritative: bool
) -> None:
    step = next_step(mode, leader, owned=True, authoritative=authoritative)
    assert step is LookupStep.ANSWER_OWNER


@pytest.mark.parametrize(
    ("mode", "leader", "authoritative", "want"),
    [
        (ANSWER, HERE, False, LookupStep.ASSIGN_HERE),
        (ANSWER, HERE, True, LookupStep.ASSIGN_HERE),
        (ANSWER, ELSEWHERE, False, LookupStep.ASK_LEADER),
        (ANSWER, ELSEWHERE, True, LookupStep.ASK_LEADER),
        (ANSWER, NOWHERE, False, LookupStep.AWAIT_OWNER),
        (ANSWER, NOWHERE, True, LookupStep.AWAIT_OWNER),
        (REDIRECT, HERE, False, LookupStep.ASSIGN_HERE),
        (REDIRECT, ELSEWHERE, False, LookupStep.REDIRECT_TO_LEADER),
        (REDIRECT, NOWHERE, False, LookupStep.AWAIT_OWNER),
        (REDIRECT, NOWHERE, True, LookupStep.AWAIT_OWNER),
        (REDIRECT, HERE, True, LookupStep.AWAIT_OWNER),
        (REDIRECT, ELSEWHERE, True, LookupStep.AWAIT_OWNER),
    ],
)
def test_an_unowned_bundle_goes_by_way_of_the_leader(
    mode: LookupMode, leader: LeaderPlace, authoritative: bool, want: LookupStep
) -> None:
    assert next_step(mode, leader, owned=False, authoritative=authoritative) is want


@pytest.mark.parametrize("leader", LeaderPlace)
@pytest.mark.parametrize(
    ("mode", "authoritative", "want"),
    [
        (ANSWER, False, LookupStep.AWAIT_OWNER),
        (REDIRECT, False, LookupStep.REDIRECT_TO_COMING),
        (REDIRECT, True, LookupStep.AWAIT_OWNER),
    ],
)
def test_what_is_on_its_way_is_waited_for_where_it_is_going_without_asking_the_leader(
    leader: LeaderPlace, mode: LookupMode, authoritative: bool, want: LookupStep
) -> None:
    step = next_step(mode, leader, owned=False, authoritative=authoritative, coming=True)
    assert step is want
