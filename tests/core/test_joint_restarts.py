"""A rolling restart: nothing is moved for balance while brokers restart one after the other."""

import json
from collections.abc import Sequence

import pytest
from joint_cluster import Broker, Traffic, open_limits, view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId
from loadmanager.core.joint.document import decode_joint, encode_joint
from loadmanager.core.joint.restarts import TOGETHER_S, Restarts
from loadmanager.core.joint.state import JointState
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Reason
from loadmanager.core.shedding import JointShedder, Shed

NAMES = tuple(BrokerId(f"{key}:1") for key in "abcd")


def seen(*lives: int, msgs: float = 6000.0, now_s: float = 60.0) -> ClusterView:
    """Return brokers that began these lives, the last of which has nothing yet."""
    brokers: dict[str, Broker] = {
        name: Broker(
            bundles=range(k * 8, k * 8 + (8 if k < len(NAMES) - 1 else 0)),
            changed={"started_at_ms": life},
        )
        for k, (name, life) in enumerate(zip(NAMES, lives, strict=True))
    }
    return view(brokers, dict.fromkeys(range(24), Traffic(msgs=msgs)), now_s=now_s)


def restarted(*times: tuple[float, str], until: float) -> Restarts:
    """Return what is known of brokers that were back at these times, by the minute."""
    found, lives = Restarts(), dict.fromkeys(NAMES, 0)
    for minute in range(int(until // 60) + 1):
        now_s = 60.0 * minute
        back = {BrokerId(f"{key}:1") for at_s, key in times if at_s == now_s}
        gone = {BrokerId(f"{key}:1") for at_s, key in times if at_s == now_s + 60.0}
        lives |= dict.fromkeys(back, minute)
        there = {name: life for name, life in lives.items() if name not in gone}
        found = found.after(now_s, tuple(there), tuple(there.values()))
    return found


@pytest.mark.parametrize(
    ("times", "until", "under_way"),
    [
        pytest.param([(300, "a")], 360, False, id="one"),
        pytest.param([(300, "a"), (600, "b")], 600, True, id="two"),
        pytest.param([(300, "a"), (600, "b")], 1020, True, id="the next is due"),
        pytest.param([(300, "a"), (600, "b")], 1080, False, id="the next never came"),
        pytest.param([(300, "a"), (600, "b"), (900, "c"), (1200, "d")], 1200, False, id="all"),
        pytest.param([(300, "a"), (360 + TOGETHER_S, "b")], 1020, False, id="far apart"),
        pytest.param([(300, "a"), (600, "b"), (900, "a")], 960, False, id="one fails again"),
        pytest.param([(300, "a"), (300, "b")], 360, False, id="two at once"),
    ],
)
def test_restarts_that_follow_each_other_are_a_rolling_restart(
    times: Sequence[tuple[float, str]], until: float, under_way: bool
) -> None:
    assert restarted(*times, until=until).under_way(until) is under_way


def test_a_broker_that_was_away_for_long_is_a_new_one() -> None:
    known = Restarts().after(0.0, NAMES, (0,) * 4).after(60.0, NAMES[1:], (0,) * 3)
    assert known.after(120.0, NAMES, (1, 0, 0, 0)).back_s == {NAMES[0]: 120.0}
    late = known.after(60.0 + TOGETHER_S + 1.0, NAMES[1:], (0,) * 3)
    assert late.after(900.0, NAMES, (1, 0, 0, 0)).back_s == {}


def decided(*views: ClusterView) -> Shed:
    """Return the last of several rounds."""
    memory, shed = Memory(), None
    for one in views:
        shed = JointShedder().decide(one, memory, open_limits(one))
        memory = shed.memory
    assert shed is not None
    return shed


def test_nothing_moves_for_balance_during_a_rolling_restart() -> None:
    before = [seen(0, 0, 0, 0, now_s=60.0), seen(0, 0, 1, 0, now_s=120.0)]
    shed = decided(*before, seen(0, 0, 1, 1, now_s=180.0))
    assert not shed.offers
    assert {one.reason for one in shed.refusals} == {Reason.ROLLING_RESTART}
    assert "uses" in shed.refusals[0].detail
    assert decided(*before, seen(0, 0, 1, 0, now_s=180.0)).offers
    assert decided(*before, seen(0, 0, 1, 1, now_s=180.0), seen(0, 0, 1, 1, now_s=600.0)).offers


def test_a_broker_that_is_nearly_full_gives_all_the_same() -> None:
    lives = [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1)]
    views = [seen(*one, msgs=20_000.0, now_s=60.0 * k) for k, one in enumerate(lives, start=1)]
    assert decided(*views).offers


def test_the_next_leader_knows_of_it() -> None:
    memory = decided(
        seen(0, 0, 0, 0, now_s=60.0), seen(0, 0, 1, 0, now_s=120.0), seen(0, 0, 1, 1, now_s=180.0)
    ).memory
    assert memory.joint is not None
    data = encode_joint(memory.joint)
    found = decode_joint("/m", data, 1000.0)
    assert found.restarts.back_s == {NAMES[2]: 940.0, NAMES[3]: 1000.0}
    assert found.restarts.under_way(1060.0)
    assert not found.restarts.under_way(1120.0)
    assert _without_restarts(memory.joint).restarts.back_s == {}


def _without_restarts(state: JointState) -> JointState:
    """Return what is read where an older version wrote."""
    found = json.loads(encode_joint(state))
    del found["restarted_ago_s"]
    return decode_joint("/m", json.dumps(found).encode(), 0.0)
