"""Runs of seeds find a build that breaks a promise, and name the promise it breaks.

Each build is the product with one protection taken away, by what a sidecar is joined of.
The same seed on the whole build finds nothing, so it is that protection that held.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from loadmanager.common.context import Context
from loadmanager.core import znodes
from loadmanager.ports.coordination import Check, Node, NodeWatch, Operation, Stat
from tests.testbed.faults.seed_run import ACTIONS, run_seed
from tests.testbed.faults.violation import Invariant

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
