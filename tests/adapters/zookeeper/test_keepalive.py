from loadmanager.adapters.zookeeper.keepalive import (
    LOOK_FRACTION,
    PROBE_FRACTION,
    SILENCE_FRACTION,
    Keepalive,
)
from loadmanager.config.serving import OwnershipSettings


def test_an_owed_answer_makes_a_link_dead_after_a_quarter_of_the_session() -> None:
    keepalive = Keepalive(12.0, now_s=100.0)
    keepalive.asked(110.0)
    assert not keepalive.is_dead(113.0)
    assert keepalive.is_dead(113.1)


def test_any_answer_is_a_sign_of_life() -> None:
    keepalive = Keepalive(12.0, now_s=100.0)
    keepalive.asked(100.0)
    keepalive.asked(100.0)
    keepalive.answered(102.9)
    assert not keepalive.is_dead(105.8)
    assert keepalive.is_dead(106.0)


def test_requests_alone_are_no_sign_of_life() -> None:
    keepalive = Keepalive(12.0, now_s=100.0)
    for at_s in (100.0, 101.0, 102.0, 103.0):
        keepalive.asked(at_s)
    assert keepalive.is_dead(103.1)


def test_a_link_that_owes_nothing_is_not_dead_but_asked() -> None:
    keepalive = Keepalive(12.0, now_s=100.0)
    assert not keepalive.wants_probe(101.9)
    assert keepalive.wants_probe(102.0)
    assert not keepalive.is_dead(1000.0)
    keepalive.asked(102.0)
    assert not keepalive.wants_probe(1000.0)
    keepalive.answered(102.5)
    assert not keepalive.wants_probe(104.0)


def test_a_dead_link_shows_well_before_two_thirds_of_the_session() -> None:
    assert PROBE_FRACTION + SILENCE_FRACTION + 2 * LOOK_FRACTION < 1 / 2


def test_a_link_is_not_probed_between_the_heartbeats_of_an_agent() -> None:
    assert OwnershipSettings().heartbeat_fraction < PROBE_FRACTION
