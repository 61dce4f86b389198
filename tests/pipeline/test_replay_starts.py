"""Bundles that no strategy balanced, from which combinations begin."""

from dataclasses import replace

import numpy as np
import pytest
from planted_advice import STILL, late
from replayed import events, frames, replayed, simulated

from loadmanager.core.ids import BundleId
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.pipeline.replay.combinations import combinations, spread_anew
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.planners import Planners
from loadmanager.pipeline.replay.replay_run import Rules
from loadmanager.pipeline.replay.scores import scores_of
from loadmanager.pipeline.replay.segment_replay import spread_anew as dealt

SETTLE_S = 300.0


@pytest.fixture(name="balanced", scope="module")
def balanced_fixture() -> list[Event]:
    """The second half of a history whose strategy had balanced all in the first."""
    return late(events(simulated("joint+joint")), 900.0)


@pytest.fixture(name="frame", scope="module")
def frame_fixture(balanced: list[Event]) -> Frame:
    first = frames(balanced)[0]
    assert isinstance(first, Frame)
    return first


def start(frame: Frame, seed: int = 1) -> list[int]:
    found: list[int] = dealt(frame, Planners().at(frame), np.random.default_rng(seed)).tolist()
    return found


def test_what_was_balanced_by_another_does_not_count_for_a_strategy_that_moves_nothing(
    balanced: list[Event],
) -> None:
    plain = combinations([STILL], [])
    as_recorded = {number: scores_of(one) for number, one in replayed(balanced, plain).items()}
    # The fault: from the recorded owners it moves nothing, and is about as even as what was
    # recorded, which has one more move.
    assert as_recorded[1].moves == 0
    assert as_recorded[1].max_over_mean == pytest.approx(as_recorded[-1].max_over_mean, rel=0.05)
    rules = Rules(settle_s=SETTLE_S)
    anew = {
        number: scores_of(one)
        for number, one in replayed(balanced, spread_anew(plain), rules=rules).items()
    }
    assert anew[1].moves + anew[1].settling_moves == 0
    assert anew[1].max_over_mean > 1.15 * anew[2].max_over_mean
    assert anew[2].max_over_mean == pytest.approx(anew[-1].max_over_mean, rel=0.1)


def test_rounds_in_which_bundles_settle_are_not_scored(balanced: list[Event]) -> None:
    lines = replayed(balanced, combinations([STILL], []), rules=Rules(settle_s=SETTLE_S))
    for one in lines.values():
        passed_s = (one["at_ms"] - one["at_ms"][0]) / 1000
        assert one["settling"].tolist() == (passed_s < SETTLE_S).tolist()
        assert scores_of(one).covered_s == one["weight_s"][passed_s >= SETTLE_S].sum()


def test_every_broker_gets_as_many_bundles_in_random_order(frame: Frame) -> None:
    one, other = start(frame), start(frame, seed=2)
    assert set(np.bincount(one)) == set(np.bincount(other)) == {8}
    assert one != other
    assert one == start(frame)


def test_isolation_holds_and_what_is_to_stay_stays(frame: Frame) -> None:
    names = frame.bundles.names
    stays = [BundleId(name) for name in names[:5]]
    isolated = IsolationPolicy(namespaces=(".*",), primary=("b-[12].*",))
    policies = Policies(isolation={"few": isolated}, staying=frozenset(stays))
    got = start(replace(frame, policies=policies))
    assert got[:5] == frame.owner.tolist()[:5]
    assert {frame.brokers.names[row].partition(":")[0] for row in got[5:]} == {"b-1", "b-2"}


def test_what_no_broker_may_have_lies_as_recorded(frame: Frame) -> None:
    nowhere = IsolationPolicy(namespaces=(".*",), primary=("none",))
    got = start(replace(frame, policies=Policies(isolation={"none": nowhere})))
    assert got == frame.owner.tolist()
