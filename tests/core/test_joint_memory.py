"""What the joint strategy remembers of imbalances and of restarts."""

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from joint_cluster import Broker, Traffic, decided, view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId
from loadmanager.core.joint.ages import HALF_PRICE_S, Ages
from loadmanager.core.joint.document import decode_joint, encode_joint
from loadmanager.core.joint.restarts import TOGETHER_S, Restarts
from loadmanager.core.plan import Reason

A, B = BrokerId("a:1"), BrokerId("b:1")


def stood(*over: tuple[float, float]) -> Ages:
    """Return the ages of two brokers that stood so far over the level, a minute apart."""
    ages = Ages()
    for number, each in enumerate(over, 1):
        ages = ages.after(60.0 * number, (A, B), np.array(each))
    return ages


def test_an_imbalance_grows_older_while_it_lasts_and_ends_where_the_broker_is_even() -> None:
    assert stood((0.1, 0.0)).age_s.tolist() == [0.0, 0.0]
    assert stood((0.1, 0.0), (0.1, 0.2)).age_s.tolist() == [60.0, 0.0]
    assert stood((0.2, 0.1), (0.1, 0.1), (0.05, 0.1)).age_s.tolist() == [120.0, 120.0]
    assert stood((0.1, 0.1), (0.0, 0.1), (0.1, 0.1)).age_s.tolist() == [0.0, 120.0]


def test_what_is_added_to_an_imbalance_makes_it_younger() -> None:
    old = stood(*[(0.1, 0.1)] * 11)
    assert old.age_s.tolist() == [600.0, 600.0]
    grown = old.after(720.0, (A, B), np.array([0.4, 0.11]))
    assert grown.age_s == pytest.approx([165.0, 600.0])


def test_brokers_that_come_begin_anew_and_others_keep_their_ages() -> None:
    former = stood((0.1, 0.2), (0.1, 0.2))
    found = former.after(180.0, (BrokerId("c:1"), B), np.array([0.1, 0.2]))
    assert found.age_s.tolist() == [0.0, 120.0]


def test_the_price_falls_with_the_age_of_the_owners_imbalance() -> None:
    ages = replace(stood((0.1, 0.1)), age_s=np.array([HALF_PRICE_S, 0.0]))
    found = ages.prices(2.0, np.array([1.0, 1.0, 3.0]), np.array([0, 1, 0]))
    assert found.tolist() == [1.0, 2.0, 3.0]


def uneven(minutes: int, passes: bool = False) -> list[int]:
    """Return how many bundles move in each round, a minute apart.

    One broker has a tenth more than the other; where that ``passes``, only every other round.
    """
    brokers = {"a:1": Broker(bundles=range(30)), "b:1": Broker(bundles=range(30, 60))}

    def seen(number: int) -> ClusterView:
        more = 2000.0 if passes and number % 2 else 2200.0
        traffic = {k: Traffic(msgs=more if k < 30 else 2000.0) for k in range(60)}
        return view(brokers, traffic, now_s=60.0 * number)

    return [len(shed.offers) for shed in decided(map(seen, range(1, minutes + 1)))]


def test_a_small_imbalance_moves_something_once_it_has_lasted() -> None:
    found = uneven(30)
    assert found[0] == 0
    assert any(found)


def test_one_of_the_same_size_that_passes_moves_nothing() -> None:
    assert not any(uneven(30, passes=True))


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


def test_nothing_moves_for_balance_during_a_rolling_restart() -> None:
    before = [seen(0, 0, 0, 0, now_s=60.0), seen(0, 0, 1, 0, now_s=120.0)]
    shed = decided([*before, seen(0, 0, 1, 1, now_s=180.0)])[-1]
    assert not shed.offers
    assert {one.reason for one in shed.refusals} == {Reason.ROLLING_RESTART}
    assert "uses" in shed.refusals[0].detail
    assert decided([*before, seen(0, 0, 1, 0, now_s=180.0)])[-1].offers
    late = [seen(0, 0, 1, 1, now_s=now_s) for now_s in (180.0, 600.0)]
    assert decided([*before, *late])[-1].offers


def test_a_broker_that_is_nearly_full_gives_all_the_same() -> None:
    lives = [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1)]
    views = [seen(*one, msgs=20_000.0, now_s=60.0 * k) for k, one in enumerate(lives, start=1)]
    assert decided(views)[-1].offers


def test_the_next_leader_knows_of_it() -> None:
    lives = [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1)]
    memory = decided(seen(*one, now_s=60.0 * k) for k, one in enumerate(lives, 1))[-1].memory
    assert memory.joint is not None
    data = encode_joint(memory.joint)
    found = decode_joint("/m", data, 1000.0)
    assert found.restarts.back_s == {NAMES[2]: 940.0, NAMES[3]: 1000.0}
    assert found.restarts.under_way(1060.0)
    assert not found.restarts.under_way(1120.0)
    # An older version wrote none.
    older = json.loads(data)
    del older["restarted_ago_s"]
    assert decode_joint("/m", json.dumps(older).encode(), 0.0).restarts.back_s == {}
