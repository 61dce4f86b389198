"""Runs of seeds find a build that breaks a promise, and name the promise it breaks.

Each build is the product with one protection taken away, by what a sidecar is joined of.
The same seed on the whole build finds nothing, so it is that protection that held.
"""

from collections.abc import Callable, Sequence

from loadmanager.app.parts import Parts
from loadmanager.core import znodes
from loadmanager.faults.seed_run import HAPPENINGS, run_seed
from loadmanager.faults.violation import Invariant
from loadmanager.ports import Check, Operation, Stat

SEEDS = range(60)

CUTS = (
    *("freeze a sidecar", "thaw all sidecars", "cut a sidecar off", "swallow a sidecar's messages"),
    *("reconnect all sidecars", "start missing sidecars", "move a bundle"),
)
SUCCESSIONS = (
    *("freeze the leader in a write", "thaw all sidecars", "start a second sidecar"),
    *("start missing sidecars", "cut a sidecar off", "reconnect all sidecars", "move a bundle"),
)


def without_self_fencing(parts: Parts) -> Parts:
    """Let the lease be renewed without a sign of life of the session."""

    async def heartbeat() -> None:
        """Hear nothing, and believe that all is well."""

    parts.coordination.heartbeat = heartbeat  # type: ignore[method-assign] # that is the point
    return parts


def without_epoch_check(parts: Parts) -> Parts:
    """Let a leader write whatever the epoch is by now."""
    send = parts.coordination.commit

    async def commit(operations: Sequence[Operation]) -> tuple[Stat | None, ...]:
        checked = [isinstance(one, Check) and one.path == znodes.EPOCH for one in operations]
        kept = [one for one, check in zip(operations, checked, strict=True) if not check]
        return await send(kept)

    parts.coordination.commit = commit  # type: ignore[method-assign] # that is the point
    return parts


def first_caught(build: Callable[[Parts], Parts], names: Sequence[str], why: Invariant) -> int:
    """Return the first seed that finds this broken, and holds the whole build to it."""
    happenings = [one for one in HAPPENINGS if one.name in names]
    assert len(happenings) == len(names)
    for seed in SEEDS:
        broken = run_seed(seed, build=build, happenings=happenings)
        if broken.invariant == why.value:
            whole = run_seed(seed, happenings=happenings)
            assert whole.violation == "", "\n".join(whole.last_lines)
            return seed
    raise AssertionError(f"no seed of {SEEDS} found {why.value} broken")


def test_a_sidecar_that_does_not_fence_its_broker_is_caught_serving_twice() -> None:
    first_caught(without_self_fencing, CUTS, Invariant.ONE_SERVER)


def test_a_leader_that_writes_without_the_check_of_its_epoch_is_caught() -> None:
    first_caught(without_epoch_check, SUCCESSIONS, Invariant.ORDERS_OF_THE_TERM)
