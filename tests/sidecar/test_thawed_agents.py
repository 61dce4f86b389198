"""An agent that froze, was replaced, and goes on: its broker keeps it from doing harm.

The broker compares the epochs of agents, and it compares fencing tokens; either is enough.
The agent itself sees that its broker's registration is another's, and ends; but it reads that
while it goes on with what it had under way, so this alone is a race. Without any of the three
the thawed agent has its broker serve again what the successor gave away, and that is found.
"""

import asyncio
from collections.abc import Callable

import pytest
from stories import served

from loadmanager.agent.owning_agent import OwningAgent
from loadmanager.agent.registration import Membership
from loadmanager.core.ids import BundleId
from loadmanager.reference_broker.memory_broker import FencingTokens, MemoryBroker
from tests.testbed.faults.cluster import Cluster, make_config, play
from tests.testbed.faults.violation import Invariant, Violation


def obey_anyone(patch: pytest.MonkeyPatch) -> None:
    """Let brokers obey agents of any epoch."""

    def obey(broker: MemoryBroker, _agent_epoch: int) -> float:
        return broker.expire()

    patch.setattr(MemoryBroker, "_accept", obey)


def take_any_token(patch: pytest.MonkeyPatch) -> None:
    """Let brokers load under tokens that are over."""

    def ignore(_tokens: FencingTokens, _bundle: BundleId, _token: int) -> None:
        """Compare nothing."""

    patch.setattr(FencingTokens, "take", ignore)
    patch.setattr(FencingTokens, "end", ignore)


def overlook_successors(patch: pytest.MonkeyPatch) -> None:
    """Let agents not see that another registered their broker."""

    async def see_nothing(_agent: OwningAgent, _membership: Membership) -> None:
        await asyncio.Event().wait()

    patch.setattr(OwningAgent, "_watch_registration", see_nothing)


LAYERS = (obey_anyone, take_any_token, overlook_successors)
OF_THE_BROKER = LAYERS[:2]
RACES_LOST = (55, 58)
"""Seeds with which a thawed agent that is compared by nobody loads before it is told."""


async def replace_and_thaw(cluster: Cluster) -> None:
    """Freeze an agent, start another, have it give a bundle away, and let the first go on."""
    await served(cluster, 6)
    leading = cluster.leader.host
    host = next(host for host in cluster.hosts if host is not leading and host.serving)
    target = next(other for other in cluster.hosts if other is not host)
    bundle = next(iter(host.serving))
    former = cluster.agent_of(host.name)
    former.coordination.freeze()
    cluster.start(host)
    await asyncio.sleep(1.5)
    await cluster.move_surely(bundle, target)
    await cluster.until(lambda: bundle in target.serving, within_s=5.0)
    former.coordination.thaw()
    await asyncio.sleep(15.0)
    assert not former.alive


@pytest.mark.parametrize("seed", [1, 11, *RACES_LOST])
@pytest.mark.parametrize("kept", OF_THE_BROKER)
def test_either_comparison_of_the_broker_keeps_a_thawed_agent_from_serving(
    kept: Callable[[pytest.MonkeyPatch], None], seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for layer in LAYERS:
        if layer is not kept:
            layer(monkeypatch)
    play(replace_and_thaw, seed=seed, config=make_config())


def test_a_build_that_compares_no_agents_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    for layer in LAYERS:
        layer(monkeypatch)
    with pytest.raises(Violation) as caught:
        play(replace_and_thaw, seed=4, config=make_config())
    assert caught.value.invariant in {Invariant.ONE_SERVER, Invariant.TOKENS_GROW}
