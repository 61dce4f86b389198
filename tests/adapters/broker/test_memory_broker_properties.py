"""Whatever commands come in whatever order: no serving without a lease, and a true record."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st
from timed_broker import TimedBroker

from loadmanager.core.ids import BundleId, parse_bundle, parse_topic
from loadmanager.ports.broker import BrokerRefused
from loadmanager.reference_broker.changes import Accepted, Change, intervals_of
from loadmanager.reference_broker.memory_broker import Ticket

BUNDLES: Final = [
    parse_bundle(f"t/n/{bounds}")
    for bounds in ("0x00000000_0xffffffff", "0x00000000_0x80000000", "0x80000000_0xffffffff")
]
TOPICS: Final = [parse_topic(f"t/n/topic-{number}") for number in range(4)]


@dataclass
class Trial:
    """A broker, what was asked of it, and what it took."""

    now_s: float = 0.0
    changes: list[Change] = field(default_factory=list)
    tickets: list[Ticket] = field(default_factory=list)
    taken: list[Accepted] = field(default_factory=list)
    granted: dict[int, float] = field(default_factory=dict)
    ended: dict[BundleId, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Start the broker."""
        self.broker = TimedBroker(self.changes.append, now_s=0.0, incarnation="i")

    def renew(self, epoch: int, lease_s: float | None, incarnation: str | None) -> None:
        """Ask for a lease, and note on our own until when it can be valid at most."""
        until_s = None if lease_s is None else self.now_s + lease_s
        self.broker.at(self.now_s).renew_lease(
            agent_epoch=epoch, until_s=until_s, incarnation=incarnation
        )
        if incarnation == "i":
            self.granted[epoch] = max(self.granted.get(epoch, 0.0), until_s or 0.0)

    def load(self, epoch: int, bundle: int, token: int) -> None:
        """Load one of three bundles."""
        self.broker.at(self.now_s).load(BUNDLES[bundle], agent_epoch=epoch, fencing_token=token)

    def unload(self, epoch: int, bundle: int, token: int) -> None:
        """Unload one of three bundles, and note what is over when nobody refuses."""
        name = BUNDLES[bundle]
        self.broker.at(self.now_s).begin_unload(name, agent_epoch=epoch, fencing_token=token)
        if not self.broker.serves(name):
            self.ended[name] = max(self.ended.get(name, 0), token)

    def begin(self, topic: int) -> None:
        """Take a request into service, if it is to be had."""
        ticket = self.broker.at(self.now_s).begin_publish(TOPICS[topic])
        if isinstance(ticket, Ticket):
            self.tickets.append(ticket)

    def finish(self) -> None:
        """Finish the oldest request in service."""
        if self.tickets:
            outcome = self.broker.at(self.now_s).finish_publish(
                self.tickets.pop(0), producer="p", payload_bytes=1
            )
            if isinstance(outcome, Accepted):
                self.taken.append(outcome)

    def abandon(self) -> None:
        """Give up the newest request in service."""
        if self.tickets:
            self.broker.at(self.now_s).abandon(self.tickets.pop())


epochs = st.integers(1, 3)
bundles = st.integers(0, 2)
Step = Callable[[Trial], None]
steps: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        lambda epoch, lease_s, incarnation: lambda trial: trial.renew(epoch, lease_s, incarnation),
        epochs,
        st.none() | st.integers(-2, 9),
        st.sampled_from(["i", "i", "i", "another", None]),
    ),
    st.builds(
        lambda epoch, bundle, token: lambda trial: trial.load(epoch, bundle, token),
        epochs,
        bundles,
        st.integers(1, 4),
    ),
    st.builds(
        lambda epoch, bundle, token: lambda trial: trial.unload(epoch, bundle, token),
        epochs,
        bundles,
        st.integers(1, 4),
    ),
    st.builds(lambda topic: lambda trial: trial.begin(topic), st.integers(0, 3)),
    st.just(Trial.finish),
    st.just(Trial.abandon),
)


def checked(trial: Trial) -> None:
    serving = trial.broker.at(trial.now_s).state().serving
    intervals = intervals_of(trial.changes, died_at_s=None)
    open_now = {
        one.bundle: one.fencing_token for one in intervals if one.start_s <= trial.now_s < one.end_s
    }
    assert serving == open_now, "the record says the same as the broker"
    for bundle, token in serving.items():
        assert token > trial.ended.get(bundle, 0), "what was unloaded is never served again"
    for one in intervals:
        assert one.end_s <= trial.granted[one.agent_epoch], "nothing outlives its own lease"
    for message in trial.taken:
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
@given(script=st.lists(st.tuples(st.integers(0, 3), steps), max_size=25))
def test_no_order_of_commands_breaks_a_rule(script: list[tuple[int, Step]]) -> None:
    trial = Trial()
    for pause_s, step in script:
        trial.now_s += pause_s
        try:
            step(trial)
        except BrokerRefused:
            continue
        finally:
            checked(trial)
