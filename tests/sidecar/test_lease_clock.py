"""A lease ends in time, whatever clock the broker's next process has."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import cast

import pytest
from prometheus_client import CollectorRegistry

from loadmanager.agent.lease import LeaseKeeper
from loadmanager.agent.ownership import OwnershipWorker
from loadmanager.agent.registration import Displaced, LeaseTerms, Membership, MembershipEnded
from loadmanager.common.context import Context
from loadmanager.core.ids import BundleId, parse_broker, parse_bundle
from loadmanager.core.lease import Heartbeats
from loadmanager.ports.broker import BrokerError
from loadmanager.telemetry.metrics import Metrics
from tests.testbed.in_process import InProcessBroker

BUNDLE = parse_bundle("t/n/0x00000000_0xffffffff")


@dataclass(slots=True)
class World:
    """The agent's clock and session, and a broker whose clock begins elsewhere in each life."""

    now_s: float = 0.0
    origin_s: float = 5000.0
    broker_rate: float = 1.0
    registered_epoch: int = 1
    session: SimpleNamespace = field(
        default_factory=lambda: SimpleNamespace(session_id=1, timeout_s=30.0)
    )

    def broker_clock_s(self) -> float:
        return self.now_s * self.broker_rate + self.origin_s

    def monotonic_s(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    async def heartbeat(self) -> None:
        """Confirm the session, at once."""

    async def get(self, _path: str) -> SimpleNamespace | None:
        found = self.registered_epoch
        return SimpleNamespace(stat=SimpleNamespace(czxid=found)) if found else None


class Serving:
    """Stands for the ownerships: hears what the broker serves."""

    commands_done = 0

    def broker_serves(self, serving: dict[BundleId, int], asked_at: int) -> None:
        """Hear it, and do nothing."""


def _keeper(
    world: World, broker: InProcessBroker, *, fraction: float = 0.5, tick_s: float = 2.0
) -> LeaseKeeper:
    context = SimpleNamespace(
        coordination=world, broker=broker, clock=world, metrics=Metrics(CollectorRegistry())
    )
    return LeaseKeeper(
        cast("Context", context),
        cast("OwnershipWorker", Serving()),
        LeaseTerms(fraction, interval_fraction=0.1, tick_s=tick_s),
        Membership(parse_broker("broker:8080"), session_id=1, agent_epoch=1),
        earlier_end_s=0.0,
        heartbeats=Heartbeats(world.now_s),
        has_other_brokers=lambda: True,
    )


def _leased(
    world: World | None = None, *, fraction: float = 0.5
) -> tuple[World, InProcessBroker, LeaseKeeper]:
    world = world or World()
    broker = InProcessBroker(world.broker_clock_s)
    return world, broker, _keeper(world, broker, fraction=fraction)


async def test_a_lease_counts_as_over_only_when_that_of_a_slower_clock_is_over_too() -> None:
    world, broker, keeper = _leased(World(broker_rate=0.985))
    await keeper.begin()
    await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)
    world.now_s = 15.0
    assert broker.serving == {BUNDLE: 1}
    world.now_s = keeper.leased_until_s
    assert broker.serving == {}
    assert world.now_s < 15.5


@pytest.mark.parametrize(
    ("registered_epoch", "ended"),
    [
        (7, pytest.raises(Displaced, match="another agent, of epoch 7, registered broker:8080")),
        (0, pytest.raises(MembershipEnded, match="the registration was deleted")),
    ],
)
@pytest.mark.parametrize("answering", [True, False])
async def test_a_new_process_of_a_broker_that_another_agent_registered_is_not_leased(
    registered_epoch: int, ended: AbstractContextManager[object], answering: bool
) -> None:
    """It remembers neither agents nor tokens, and the other one may have given bundles away."""
    world, broker, keeper = _leased()
    await keeper.begin()
    world.registered_epoch = registered_epoch
    await keeper._extend()  # The process that was leased refuses older agents by itself.
    broker.kill()
    if not answering:
        with pytest.raises(BrokerError):
            await keeper._extend()
    broker.restart()
    with ended:
        await keeper._extend()
    with pytest.raises(BrokerError):
        await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)
    with ended:
        await keeper._extend()


async def test_a_lease_is_over_half_a_tick_before_the_timeout_that_was_granted() -> None:
    short = World(broker_rate=0.985, session=SimpleNamespace(session_id=1, timeout_s=4.0))
    world, broker, keeper = _leased(short, fraction=0.9)
    await keeper.begin()
    await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)
    world.now_s = 2.85
    assert broker.serving == {BUNDLE: 1}
    world.now_s = 3.0
    assert keeper.leased_until_s < 3.0
    assert broker.serving == {}


async def test_where_no_lease_is_safe_none_is_given() -> None:
    world = World(session=SimpleNamespace(session_id=1, timeout_s=4.0))
    broker = InProcessBroker(world.broker_clock_s)
    with pytest.raises(MembershipEnded, match="tick_s is 8; expected the tickTime"):
        await _keeper(world, broker, tick_s=8.0).begin()
    with pytest.raises(BrokerError):
        await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)


async def test_the_first_lease_of_a_late_session_waits_until_its_heartbeat_was_reported() -> None:
    world, broker, keeper = _leased()
    world.now_s = 100.0
    await keeper.begin()
    assert 101.0 < world.now_s < 101.5
    await broker.load(BUNDLE, agent_epoch=1, fencing_token=1)
    assert world.now_s + 10.0 < keeper.leased_until_s < 100.0 + 30.0


async def test_a_session_soon_after_the_start_is_leased_at_once() -> None:
    world, _, keeper = _leased()
    world.now_s = 2.0
    await keeper.begin()
    assert world.now_s == 2.0
    assert keeper.leased_until_s > 2.0 + 15.0
