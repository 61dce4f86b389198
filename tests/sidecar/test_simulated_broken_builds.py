"""Runs of seeds find a build that breaks a promise, and name the promise it breaks.

Each build is the product with one protection taken away, by what a sidecar is joined of.
The same seed on the whole build finds nothing, so it is that protection that held.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from stories import served

from loadmanager.agent.owning_agent import OwningAgent
from loadmanager.agent.registration import Membership
from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.ports.coordination import Check, Node, NodeWatch, Operation, Stat
from loadmanager.reference_broker.memory_broker import FencingTokens, MemoryBroker
from tests.testbed.faults.cluster import Cluster, make_config, play
from tests.testbed.faults.seed_run import ACTIONS, run_seed
from tests.testbed.faults.violation import Invariant, Violation

SEEDS = range(60)
CUTS = {
    "freeze a sidecar": 1,
    "thaw all sidecars": 3,
    "cut a sidecar off": 1,
    "swallow a sidecar's messages": 1,
    "reconnect all sidecars": 3,
    "start missing sidecars": 3,
    "move a bundle": 3,
}
EPOCHS = {"raise the epoch": 1, "move a bundle": 4, "unload": 2}


DEATHS = {"kill a sidecar": 2, "start missing sidecars": 2, "move a bundle": 1}
QUESTIONS = {"create a namespace": 2, "move a bundle": 1}


def without_self_fencing(context: Context) -> Context:
    """Let the lease be renewed without a sign of life of the session."""

    async def heartbeat() -> None:
        """Hear nothing, and believe that all is well."""

    context.coordination.heartbeat = heartbeat  # type: ignore[method-assign] # that is the point
    return context


def without_epoch_check(context: Context) -> Context:
    """Let a leader write whatever the epoch is by now."""
    send = context.coordination.commit

    async def commit(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        checked = [isinstance(one, Check) and one.path == znodes.EPOCH for one in operations]
        kept = [one for one, check in zip(operations, checked, strict=True) if not check]
        return await send(kept)

    context.coordination.commit = commit  # type: ignore[method-assign] # that is the point
    return context


def without_changes_of_the_leader(context: Context) -> Context:
    """Let watches tell who leads once, and never that this has changed."""
    return _deaf_to(context, lambda path: path == znodes.LEADER)


def without_changes_of_orders(context: Context) -> Context:
    """Let watches report a broker's orders once, and no change of them."""
    return _deaf_to(context, lambda path: path.startswith(znodes.ORDERS))


def _deaf_to(context: Context, unheard: Callable[[str], bool]) -> Context:
    watch = context.coordination.watch

    def watch_once(
        path: str,
        callback: Callable[[Node | None], None],
        *,
        postpone: Callable[[], bool] | None = None,
    ) -> NodeWatch:
        told: list[Node] = []

        def tell(node: Node | None) -> None:
            if not told or not unheard(path):
                callback(node)
            if node is not None:
                told.append(node)

        return watch(path, tell, postpone=postpone)

    context.coordination.watch = watch_once  # type: ignore[method-assign] # that is the point
    return context


def first_caught(
    build: Callable[[Context], Context], weights: Mapping[str, int], why: Invariant
) -> int:
    """Return the first seed that finds this broken, and hold the whole build to the same seed."""
    known = {one.name: one for one in ACTIONS}
    actions = [replace(known[name], weight=weight) for name, weight in weights.items()]
    for seed in SEEDS:
        broken = run_seed(seed, build=build, actions=actions)
        if broken.invariant == why.value:
            whole = run_seed(seed, actions=actions)
            assert whole.violation == "", "\n".join(whole.last_lines)
            return seed
    raise AssertionError(f"no seed of {SEEDS} found {why.value} broken")


def test_a_sidecar_that_does_not_fence_its_broker_is_caught_serving_twice() -> None:
    first_caught(without_self_fencing, CUTS, Invariant.ONE_SERVER)


def test_a_leader_that_writes_without_the_check_of_its_epoch_is_caught() -> None:
    first_caught(without_epoch_check, EPOCHS, Invariant.ORDERS_OF_THE_TERM)


def test_sidecars_that_do_not_hear_that_the_leader_is_gone_are_caught_without_one() -> None:
    first_caught(without_changes_of_the_leader, DEATHS, Invariant.SOMEBODY_LEADS)


def test_sidecars_that_do_not_hear_of_orders_are_caught_serving_nothing_that_is_asked_for() -> None:
    first_caught(without_changes_of_orders, QUESTIONS, Invariant.SERVED_WHEN_ASKED)


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
