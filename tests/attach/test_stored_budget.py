"""Budgets of moves outlive the controller that used them up."""

import json

import pytest

from loadmanager.core.ids import BundleId
from loadmanager.core.move_limits import MoveBudget, MoveLimits
from loadmanager.pulsar.state import Part, State, StateUnusable, StoredBudget

BUNDLE = BundleId("t/n/0x00000000_0xffffffff")


def stored(state: State, *, at_s: float, per_hour: int = 2) -> StoredBudget:
    """Return a controller's budget; its own clock begins anew, that of the wall goes on."""
    budget = MoveBudget(MoveLimits(per_hour=per_hour))
    return StoredBudget(
        budget, state, wall_ms=lambda: round(at_s * 1000), monotonic_s=lambda: at_s - 5000.0
    )


async def resumed(state: State, *, at_s: float) -> str:
    following = stored(state, at_s=at_s)
    await following.resume()
    return following.budget.exhausted(BUNDLE, at_s - 5000.0)


async def test_the_next_controller_counts_the_moves_of_the_last_hour(state: State) -> None:
    assert await resumed(state, at_s=9000.0) == ""
    leader = stored(state, at_s=9000.0)
    for _ in range(2):
        leader.budget.begin(BUNDLE, 4000.0)
    await leader.store()
    assert await resumed(state, at_s=9100.0) == "2 moves an hour"
    assert await resumed(state, at_s=12_601.0) == ""
    # A clock that is behind tells nothing of moves that have not been.
    assert await resumed(state, at_s=8000.0) == "2 moves an hour"


async def test_one_that_crashed_amid_a_round_counts_as_having_moved_all(state: State) -> None:
    leader = stored(state, at_s=9000.0)
    await leader.store([BUNDLE, BUNDLE])
    assert await resumed(state, at_s=9001.0) == "2 moves an hour"
    leader.budget.begin(BUNDLE, 4000.0)
    await leader.store()
    assert await resumed(state, at_s=9001.0) == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps({"format": 2, "begun": []}),
        json.dumps({"format": 1, "begun": 3}),
        json.dumps({"format": 1, "begun": [[1, "t/n"]]}),
        json.dumps({"format": 1, "begun": [["x", "t/n", 1]]}),
        json.dumps({"format": 1, "begun": [[1, "t/n", 10**9]]}),
        json.dumps({"format": 1, "begun": [[1, "nowhere", 1]]}),
    ],
)
async def test_what_is_none_is_refused_by_name(state: State, text: str) -> None:
    await state.keep(Part.MOVES, text)
    with pytest.raises(StateUnusable, match="expected the moves of the last hour") as refused:
        await resumed(state, at_s=9000.0)
    assert state.where(Part.MOVES) in str(refused.value)
