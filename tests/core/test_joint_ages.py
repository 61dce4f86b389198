"""Moves off a broker cost less the longer it has stood above the level."""

from dataclasses import replace

import numpy as np
import pytest
from joint_cluster import Broker, Traffic, open_limits, view

from loadmanager.core.ids import BrokerId
from loadmanager.core.joint.ages import HALF_PRICE_S, Ages
from loadmanager.core.memory import Memory
from loadmanager.core.shedding import JointShedder

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
    memory, shedder, found = Memory(), JointShedder(), []
    brokers = {"a:1": Broker(bundles=range(30)), "b:1": Broker(bundles=range(30, 60))}
    for number in range(1, minutes + 1):
        more = 2000.0 if passes and number % 2 else 2200.0
        traffic = {k: Traffic(msgs=more if k < 30 else 2000.0) for k in range(60)}
        seen = view(brokers, traffic, now_s=60.0 * number)
        shed = shedder.decide(seen, memory, open_limits(seen))
        memory = shed.memory
        found.append(len(shed.offers))
    return found


def test_a_small_imbalance_moves_something_once_it_has_lasted() -> None:
    found = uneven(30)
    assert found[0] == 0
    assert any(found)


def test_one_of_the_same_size_that_passes_moves_nothing() -> None:
    assert not any(uneven(30, passes=True))
