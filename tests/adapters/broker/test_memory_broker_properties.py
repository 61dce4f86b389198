"""Whatever commands come in whatever order: no serving without a lease, and a true record."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st
from timed_broker import TimedBroker

from loadmanager.core.ids import BundleId, TopicName, parse_bundle, parse_topic
from loadmanager.ports.broker import BrokerRefused
from loadmanager.reference_broker.changes import Accepted, Change, intervals_of
from loadmanager.reference_broker.memory_broker import Ticket

BUNDLES: Final = [
    parse_bundle(f"t/n/{bounds}")
    for bounds in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
]
EPOCH, BUNDLE = st.integers(1, 3), st.sampled_from(BUNDLES)
TOPICS: Final = [parse_topic(f"t/n/topic-{number}") for number in range(4)]
TOPIC = st.sampled_from(TOPICS)
STEP = st.one_of(
    st.tuples(
        st.just("renew"),
        EPOCH,
        st.none() | st.integers(-2, 9),
        st.sampled_from(["i", "i", "i", "another", None]),
    ),
    st.tuples(st.sampled_from(["load", "unload"]), EPOCH, BUNDLE, st.integers(1, 4)),
    st.tuples(st.just("begin"), TOPIC),
    st.tuples(st.sampled_from(["finish", "abandon"])),
)


@dataclass
class Trial:
    now_s: float = 0.0
    changes: list[Change] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    taken: list[Accepted] = field(default_factory=list)
    granted: dict[int, float] = field(default_factory=dict)
    ended: dict[BundleId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.broker = TimedBroker(self.changes.append, now_s=0.0, incarnation="i")

    def do(self, step: tuple[Any, ...]) -> None:
        """Do one step, and note on our own what is granted at most, ended and taken."""
        broker = self.broker.at(self.now_s)
        match step:
            case "renew", epoch, lease_s, incarnation:
                until_s = None if lease_s is None else self.now_s + lease_s
                broker.renew_lease(agent_epoch=epoch, until_s=until_s, incarnation=incarnation)
                if incarnation == "i":
                    self.granted[epoch] = max(self.granted.get(epoch, 0.0), until_s or 0.0)
            case "load", epoch, bundle, token:
                broker.load(bundle, agent_epoch=epoch, fencing_token=token)
            case "unload", epoch, bundle, token:
                broker.begin_unload(bundle, agent_epoch=epoch, fencing_token=token)
                if not broker.serves(bundle):
                    self.ended[bundle] = max(self.ended.get(bundle, 0), token)
            case _:
                self._publish(broker, *step)

    def _publish(self, broker: TimedBroker, what: str, topic: TopicName = TOPICS[0]) -> None:
        if what == "begin":
            self.tickets.append(broker.begin_publish(topic))
        elif what == "finish" and self.tickets:
            oldest = self.tickets.pop(0)
            self.taken.append(broker.finish_publish(oldest, producer="p", payload_bytes=1))
        elif self.tickets:
            broker.abandon(self.tickets.pop())

    def check(self) -> None:
        serving = self.broker.at(self.now_s).state().serving
        intervals = intervals_of(self.changes, died_at_s=None)
        open_now = {
            one.bundle: one.fencing_token
            for one in intervals
            if one.start_s <= self.now_s < one.end_s
        }
        assert serving == open_now, "the record says the same as the broker"
        for bundle, token in serving.items():
            assert token > self.ended.get(bundle, 0), "what was unloaded is never served again"
        for one in intervals:
            assert one.end_s <= self.granted[one.agent_epoch], "nothing outlives its own lease"
        for message in self.taken:
            assert any(
                (one.bundle, one.fencing_token) == (message.bundle, message.fencing_token)
                and one.start_s <= message.clock_s <= one.end_s
                for one in intervals
            ), "every message was taken while its bundle was served"
        for bundle in BUNDLES:
            of_bundle = [one for one in intervals if one.bundle == bundle]
            assert all(before.end_s <= after.start_s for before, after in pairwise(of_bundle))
            tokens = [one.fencing_token for one in of_bundle]
            assert tokens == sorted(tokens), "tokens of a bundle never fall"


@settings(max_examples=150)
@given(script=st.lists(st.tuples(st.integers(0, 3), STEP), max_size=25))
def test_no_order_of_commands_breaks_a_rule(script: list[tuple[int, tuple[Any, ...]]]) -> None:
    trial = Trial()
    for pause_s, step in script:
        trial.now_s += pause_s
        try:
            trial.do(step)
        except BrokerRefused:
            continue
        finally:
            trial.check()
