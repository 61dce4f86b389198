from dataclasses import dataclass, field

import pytest
from timed_broker import TimedBroker

from loadmanager.core.hashing import position
from loadmanager.core.ids import BundleId, TopicName, parse_bundle, parse_topic
from loadmanager.core.load import BundleStats
from loadmanager.ports.broker import BrokerState, StaleAgent
from loadmanager.reference_broker.changes import (
    Accepted,
    BundleLoaded,
    Change,
    EndReason,
    LeaseGranted,
    LeaseLost,
    NotNow,
    PublishRefusal,
    PublishRefused,
    ServingEnded,
    Started,
    Stopped,
    UnloadBegun,
)
from loadmanager.reference_broker.memory_broker import Ticket

WHOLE = parse_bundle("t/n/0x00000000_0xffffffff")
LOWER = parse_bundle("t/n/0x00000000_0x80000000")
UPPER = parse_bundle("t/n/0x80000000_0xffffffff")
TOPIC = parse_topic("persistent://t/n/orders")


@dataclass
class Recorder:
    """Keeps changes; raises for the next one when told to, as a full disk would."""

    changes: list[Change] = field(default_factory=list)
    full: bool = False

    def __call__(self, change: Change) -> None:
        """Keep ``change``."""
        if self.full:
            raise OSError("disk full")
        self.changes.append(change)


def new_broker(record: Recorder | None = None) -> TimedBroker:
    return TimedBroker(record or Recorder(), now_s=100.0)


def loaded_broker(record: Recorder | None = None, bundle: BundleId = WHOLE) -> TimedBroker:
    """Return a broker that serves ``bundle`` for agent 1 with token 7 until 110."""
    broker = new_broker(record)
    broker.at(100.0).renew_lease(agent_epoch=1, until_s=110.0, incarnation="i1")
    broker.at(101.0).load(bundle, agent_epoch=1, fencing_token=7)
    return broker


def in_service(broker: TimedBroker, now_s: float) -> Ticket:
    ticket = broker.at(now_s).begin_publish(TOPIC)
    assert isinstance(ticket, Ticket)
    return ticket


def publish(
    broker: TimedBroker, now_s: float, topic: TopicName = TOPIC
) -> Accepted | PublishRefused:
    ticket = broker.at(now_s).begin_publish(topic)
    if isinstance(ticket, PublishRefused):
        return ticket
    return broker.at(now_s).finish_publish(ticket, producer="p", payload_bytes=10)


def refusal(outcome: Ticket | Accepted | PublishRefused) -> PublishRefusal | None:
    return outcome.why if isinstance(outcome, PublishRefused) else None


def test_a_new_broker_serves_nothing_and_has_no_lease() -> None:
    record = Recorder()
    broker = new_broker(record)
    assert broker.at(101.0).state() == BrokerState(incarnation="i1", clock_s=101.0, serving={})
    assert broker.next_expiry_s is None
    assert refusal(publish(broker, 101.0)) is PublishRefusal.NO_LEASE
    assert record.changes == [Started(at_s=100.0, broker="b1:8080", incarnation="i1")]


def test_a_loaded_bundle_takes_messages_under_its_token() -> None:
    broker = loaded_broker()
    assert publish(broker, 102.0) == Accepted(bundle=WHOLE, fencing_token=7, clock_s=102.0)
    assert broker.at(102.0).state().serving == {WHOLE: 7}


def test_load_without_a_lease_is_refused() -> None:
    broker = new_broker()
    with pytest.raises(NotNow, match="agent epoch 1 has no valid lease"):
        broker.at(100.0).load(WHOLE, agent_epoch=1, fencing_token=7)


def test_a_lease_that_ran_out_ends_everything_at_the_time_it_ran_out() -> None:
    record = Recorder()
    broker = loaded_broker(record)
    assert refusal(publish(broker, 115.0)) is PublishRefusal.NO_LEASE
    assert broker.at(115.0).state().serving == {}
    assert record.changes[-2:] == [
        LeaseLost(at_s=115.0, agent_epoch=1, until_s=110.0),
        ServingEnded(
            at_s=115.0,
            bundle=WHOLE,
            fencing_token=7,
            agent_epoch=1,
            start_s=101.0,
            end_s=110.0,
            why=EndReason.LEASE_LOST,
        ),
    ]


def test_at_the_very_end_of_its_lease_a_broker_serves_no_more() -> None:
    broker = loaded_broker()
    assert refusal(publish(broker, 109.999)) is None
    assert refusal(publish(broker, 110.0)) is PublishRefusal.NO_LEASE


def test_what_a_lost_lease_ended_must_be_loaded_again() -> None:
    broker = loaded_broker()
    assert (
        broker.at(120.0).renew_lease(agent_epoch=1, until_s=130.0, incarnation="i1").serving == {}
    )
    assert refusal(publish(broker, 121.0)) is PublishRefusal.NOT_SERVED
    broker.at(122.0).load(WHOLE, agent_epoch=1, fencing_token=7)
    assert refusal(publish(broker, 123.0)) is None


def test_a_message_begun_within_the_lease_is_not_taken_after_it() -> None:
    broker = loaded_broker()
    ticket = in_service(broker, 109.9)
    outcome = broker.at(110.1).finish_publish(ticket, producer="p", payload_bytes=1)
    assert refusal(outcome) is PublishRefusal.NO_LEASE


def test_a_renewal_never_shortens_a_lease() -> None:
    broker = loaded_broker()
    broker.at(102.0).renew_lease(agent_epoch=1, until_s=105.0, incarnation="i1")
    broker.at(102.0).renew_lease(agent_epoch=1, until_s=None, incarnation=None)
    assert broker.next_expiry_s == 110.0


def test_a_renewal_that_arrives_after_its_own_end_gives_no_lease() -> None:
    record = Recorder()
    broker = new_broker(record)
    broker.at(100.0).renew_lease(agent_epoch=1, until_s=100.0, incarnation="i1")
    assert broker.next_expiry_s is None
    assert len(record.changes) == 1


def test_a_renewal_is_recorded() -> None:
    record = Recorder()
    new_broker(record).at(101.0).renew_lease(agent_epoch=4, until_s=105.0, incarnation="i1")
    assert record.changes[-1] == LeaseGranted(at_s=101.0, agent_epoch=4, until_s=105.0)


def test_an_older_agent_is_obeyed_no_more() -> None:
    broker = loaded_broker()
    broker.at(102.0).renew_lease(agent_epoch=2, until_s=None, incarnation=None)
    with pytest.raises(StaleAgent, match="agent epoch 1 is older than 2"):
        broker.at(103.0).renew_lease(agent_epoch=1, until_s=200.0, incarnation="i1")
    with pytest.raises(StaleAgent):
        broker.at(103.0).load(WHOLE, agent_epoch=1, fencing_token=9)
    with pytest.raises(StaleAgent):
        broker.at(103.0).begin_unload(WHOLE, agent_epoch=1, fencing_token=7)
    assert broker.at(103.0).state().serving == {WHOLE: 7}


def test_a_new_agent_extends_only_what_it_loaded_itself() -> None:
    broker = loaded_broker(bundle=LOWER)
    broker.at(102.0).renew_lease(agent_epoch=2, until_s=130.0, incarnation="i1")
    broker.at(103.0).load(UPPER, agent_epoch=2, fencing_token=8)
    assert broker.at(109.0).state().serving == {LOWER: 7, UPPER: 8}
    assert broker.at(110.0).state().serving == {UPPER: 8}


def test_a_new_agent_does_not_inherit_the_longer_lease_of_the_old_one() -> None:
    broker = loaded_broker(bundle=LOWER)
    broker.at(102.0).renew_lease(agent_epoch=2, until_s=105.0, incarnation="i1")
    broker.at(103.0).load(UPPER, agent_epoch=2, fencing_token=8)
    assert broker.at(106.0).state().serving == {LOWER: 7}


def test_a_new_agent_takes_a_bundle_over_without_a_gap() -> None:
    record = Recorder()
    broker = loaded_broker(record)
    broker.at(102.0).renew_lease(agent_epoch=2, until_s=130.0, incarnation="i1")
    ticket = in_service(broker, 102.5)
    broker.at(103.0).load(WHOLE, agent_epoch=2, fencing_token=8)
    outcome = broker.at(104.0).finish_publish(ticket, producer="p", payload_bytes=1)
    assert outcome == Accepted(bundle=WHOLE, fencing_token=8, clock_s=104.0)
    assert broker.at(115.0).state().serving == {WHOLE: 8}
    assert record.changes[4:6] == [
        ServingEnded(
            at_s=103.0,
            bundle=WHOLE,
            fencing_token=7,
            agent_epoch=1,
            start_s=101.0,
            end_s=103.0,
            why=EndReason.REGRANTED,
        ),
        BundleLoaded(at_s=103.0, bundle=WHOLE, fencing_token=8, agent_epoch=2),
    ]


def test_loading_what_is_loaded_with_this_token_changes_nothing() -> None:
    record = Recorder()
    broker = loaded_broker(record)
    publish(broker, 101.5)
    before = [*record.changes]
    broker.at(102.0).load(WHOLE, agent_epoch=1, fencing_token=7)
    assert record.changes == before
    assert broker.at(102.0).stats().bundles[WHOLE].topics == 1


def test_an_idle_bundle_is_unloaded_at_once() -> None:
    record = Recorder()
    broker = loaded_broker(record)
    broker.at(103.0).begin_unload(WHOLE, agent_epoch=1, fencing_token=7)
    assert not broker.serves(WHOLE)
    assert record.changes[-2:] == [
        UnloadBegun(at_s=103.0, bundle=WHOLE, fencing_token=7),
        ServingEnded(
            at_s=103.0,
            bundle=WHOLE,
            fencing_token=7,
            agent_epoch=1,
            start_s=101.0,
            end_s=103.0,
            why=EndReason.UNLOADED,
        ),
    ]


def test_unloading_what_is_not_loaded_is_fine() -> None:
    record = Recorder()
    broker = new_broker(record)
    broker.at(103.0).begin_unload(WHOLE, agent_epoch=1, fencing_token=7)
    assert len(record.changes) == 1


def test_an_unload_ends_with_the_last_request_in_service() -> None:
    record = Recorder()
    broker = loaded_broker(record)
    first, second = in_service(broker, 102.0), in_service(broker, 102.0)
    broker.at(103.0).begin_unload(WHOLE, agent_epoch=1, fencing_token=7)
    broker.at(103.1).begin_unload(WHOLE, agent_epoch=1, fencing_token=7)
    assert refusal(publish(broker, 103.2)) is PublishRefusal.NOT_SERVED
    outcome = broker.at(104.0).finish_publish(first, producer="p", payload_bytes=1)
    assert refusal(outcome) is None
    assert broker.serves(WHOLE)
    broker.at(105.0).abandon(second)
    assert not broker.serves(WHOLE)
    assert [type(change) for change in record.changes[3:]] == [UnloadBegun, ServingEnded]
    ended = record.changes[-1]
    assert isinstance(ended, ServingEnded)
    assert ended.end_s == 105.0


def test_an_abandoned_request_leaves_an_open_bundle_open() -> None:
    broker = loaded_broker()
    ticket = in_service(broker, 102.0)
    broker.at(103.0).abandon(ticket)
    assert broker.serves(WHOLE)
    broker.at(104.0).begin_unload(WHOLE, agent_epoch=1, fencing_token=7)
    assert not broker.serves(WHOLE)


def test_loading_waits_for_an_unload_that_is_not_done() -> None:
    broker = loaded_broker()
    in_service(broker, 102.0)
    broker.at(103.0).begin_unload(WHOLE, agent_epoch=1, fencing_token=7)
    with pytest.raises(NotNow, match="still being unloaded"):
        broker.at(104.0).load(WHOLE, agent_epoch=1, fencing_token=8)


def test_a_request_of_an_earlier_load_does_not_count_for_a_later_one() -> None:
    broker = loaded_broker()
    ticket = in_service(broker, 109.0)
    broker.at(111.0).renew_lease(agent_epoch=1, until_s=130.0, incarnation="i1")
    broker.at(112.0).load(WHOLE, agent_epoch=1, fencing_token=8)
    outcome = broker.at(113.0).finish_publish(ticket, producer="p", payload_bytes=1)
    assert refusal(outcome) is PublishRefusal.NOT_SERVED
    broker.at(113.0).abandon(ticket)
    assert broker.at(113.0).stats().bundles == {WHOLE: BundleStats()}


def test_halves_of_a_split_take_over_before_their_parent_is_gone() -> None:
    broker = loaded_broker()
    broker.at(102.0).load(LOWER, agent_epoch=1, fencing_token=8)
    broker.at(102.0).load(UPPER, agent_epoch=1, fencing_token=9)
    half = UPPER if position(TOPIC, "murmur3") >= 0x80000000 else LOWER
    outcome = publish(broker, 103.0)
    assert isinstance(outcome, Accepted)
    assert outcome.bundle == half


def test_the_topics_of_another_namespace_are_not_served() -> None:
    broker = loaded_broker()
    outcome = publish(broker, 102.0, parse_topic("t/other/orders"))
    assert outcome == PublishRefused(
        PublishRefusal.NOT_SERVED,
        "persistent://t/other/orders is not served here; look its owner up again",
    )


def test_the_other_bundles_of_a_namespace_outlive_an_unload() -> None:
    broker = loaded_broker(bundle=LOWER)
    broker.at(102.0).load(UPPER, agent_epoch=1, fencing_token=8)
    broker.at(103.0).begin_unload(LOWER, agent_epoch=1, fencing_token=7)
    assert broker.at(103.0).state().serving == {UPPER: 8}


def test_a_stopped_broker_serves_nothing_and_obeys_nobody() -> None:
    record = Recorder()
    broker = loaded_broker(record)
    ticket = in_service(broker, 102.0)
    broker.at(103.0).stop()
    outcome = broker.at(103.0).finish_publish(ticket, producer="p", payload_bytes=1)
    assert refusal(outcome) is PublishRefusal.NO_LEASE
    with pytest.raises(NotNow, match="stopping"):
        broker.at(104.0).renew_lease(agent_epoch=1, until_s=200.0, incarnation="i1")
    assert [type(change) for change in record.changes[-2:]] == [ServingEnded, Stopped]
    assert record.changes[-1] == Stopped(at_s=103.0)


def test_stats_tell_the_traffic_of_what_is_served() -> None:
    broker = loaded_broker()
    for now_s in (102.0, 102.5):
        publish(broker, now_s)
    stats = broker.at(103.0).stats()
    assert stats.window_s == 2.0
    assert stats.bundles[WHOLE].producers == 1
    assert stats.bundles[WHOLE].msgs_in_per_s > 0
    assert broker.at(110.0).stats().bundles == {}


def test_a_load_that_cannot_be_recorded_does_not_happen() -> None:
    record = Recorder()
    broker = new_broker(record)
    broker.at(100.0).renew_lease(agent_epoch=1, until_s=110.0, incarnation="i1")
    record.full = True
    with pytest.raises(OSError, match="disk full"):
        broker.at(101.0).load(WHOLE, agent_epoch=1, fencing_token=7)
    assert not broker.serves(WHOLE)


def test_a_lost_lease_that_cannot_be_recorded_ends_serving_all_the_same() -> None:
    record = Recorder()
    broker = loaded_broker(record)
    record.full = True
    with pytest.raises(OSError, match="disk full"):
        broker.at(111.0).expire()
    assert not broker.serves(WHOLE)
    assert broker.next_expiry_s is None
