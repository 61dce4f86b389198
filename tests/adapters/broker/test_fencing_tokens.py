"""Which grants of a bundle the in-memory broker takes, and which are over."""

import pytest
from timed_broker import TimedBroker

from loadmanager.core.ids import parse_bundle, parse_topic
from loadmanager.reference_broker.changes import Change, NotNow, StaleToken
from loadmanager.reference_broker.memory_broker import Ticket

WHOLE = parse_bundle("t/n/0x00000000_0xffffffff")
LOWER = parse_bundle("t/n/0x00000000_0x80000000")
TOPIC = parse_topic("t/n/orders")


def new_broker(*, leased: bool = True) -> TimedBroker:
    """Return a broker at 100.0, leased to agent 1 until 110 if it is leased."""
    changes: list[Change] = []
    broker = TimedBroker(changes.append, now_s=100.0)
    if leased:
        broker.at(100.0).renew_lease(agent_epoch=1, until_s=110.0, incarnation="i1")
    return broker


def load(broker: TimedBroker, token: int, now_s: float = 101.0) -> None:
    broker.at(now_s).load(WHOLE, agent_epoch=1, fencing_token=token)


def unload(broker: TimedBroker, token: int, now_s: float = 102.0) -> None:
    broker.at(now_s).begin_unload(WHOLE, agent_epoch=1, fencing_token=token)


def test_an_older_token_is_refused_while_a_newer_one_is_served() -> None:
    broker = new_broker()
    load(broker, 7)
    with pytest.raises(StaleToken, match="fencing token 6 is over; expected 7 or more"):
        load(broker, 6)
    assert broker.at(101.0).state().serving == {WHOLE: 7}


def test_a_token_counts_as_seen_even_if_the_load_was_refused() -> None:
    broker = new_broker(leased=False)
    with pytest.raises(NotNow):
        load(broker, 7)
    broker.at(100.0).renew_lease(agent_epoch=1, until_s=110.0, incarnation="i1")
    with pytest.raises(StaleToken):
        load(broker, 6)


@pytest.mark.parametrize("late", [7, 6])
def test_an_unload_ends_its_token_and_all_below(late: int) -> None:
    broker = new_broker()
    load(broker, 7)
    unload(broker, 7)
    with pytest.raises(StaleToken, match=f"fencing token {late} is over; expected 8 or more"):
        load(broker, late)
    load(broker, 8)
    assert broker.at(103.0).state().serving == {WHOLE: 8}


def test_an_unload_that_overtook_its_load_ends_the_token_all_the_same() -> None:
    broker = new_broker()
    unload(broker, 7)
    with pytest.raises(StaleToken):
        load(broker, 7)
    assert not broker.serves(WHOLE)


def test_a_lost_lease_does_not_bring_an_ended_token_back() -> None:
    broker = new_broker()
    unload(broker, 7)
    broker.at(120.0).renew_lease(agent_epoch=1, until_s=130.0, incarnation="i1")
    with pytest.raises(StaleToken):
        load(broker, 7, now_s=121.0)


def test_an_ended_token_is_refused_to_a_newer_agent_too() -> None:
    broker = new_broker()
    unload(broker, 7)
    broker.at(103.0).renew_lease(agent_epoch=2, until_s=130.0, incarnation="i1")
    with pytest.raises(StaleToken):
        broker.at(104.0).load(WHOLE, agent_epoch=2, fencing_token=7)


def test_an_unload_of_an_older_grant_leaves_the_newer_one() -> None:
    broker = new_broker()
    load(broker, 8)
    with pytest.raises(StaleToken, match="token 7 is older than 8, which it is served under"):
        unload(broker, 7)
    assert broker.at(103.0).state().serving == {WHOLE: 8}
    # The same grant again, as after a lost answer.
    load(broker, 8)


def test_an_unload_of_a_newer_token_ends_the_older_grant() -> None:
    broker = new_broker()
    load(broker, 7)
    unload(broker, 9)
    assert not broker.serves(WHOLE)
    with pytest.raises(StaleToken):
        load(broker, 8)


def test_an_older_unload_of_what_is_not_served_ends_nothing_newer() -> None:
    broker = new_broker()
    unload(broker, 7)
    unload(broker, 5)
    with pytest.raises(StaleToken, match="expected 8 or more"):
        load(broker, 7)


def test_the_unload_of_one_bundle_ends_no_token_of_another() -> None:
    broker = new_broker()
    unload(broker, 7)
    broker.at(103.0).load(LOWER, agent_epoch=1, fencing_token=7)
    assert broker.at(103.0).state().serving == {LOWER: 7}


def test_the_token_of_an_unload_under_way_is_over_and_a_newer_one_has_to_wait() -> None:
    broker = new_broker()
    load(broker, 7)
    assert isinstance(broker.at(101.5).begin_publish(TOPIC), Ticket)
    unload(broker, 7)
    with pytest.raises(StaleToken):
        load(broker, 7)
    with pytest.raises(NotNow, match="still being unloaded"):
        load(broker, 8)
    assert broker.serves(WHOLE, up_to_token=7)
    assert not broker.serves(WHOLE, up_to_token=6)
