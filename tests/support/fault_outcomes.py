"""What a fault came to: how soon all was served again, and whether a promise was broken."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from random import Random
from time import monotonic

from fault_cluster import WITHIN_S, FaultCluster
from fault_hosts import SESSION_S, TICK_S

from loadmanager.checker.availability import Disturbance, gaps, recovery_s
from loadmanager.checker.publishing import Publish
from loadmanager.checker.verdict import Verdict, judge

PAUSE_S = SESSION_S + 2 * TICK_S + 1.0
"""Longer than the session lives, and long enough for others to have taken over."""

SETTLED_S = 1.0
HAND_OVER_S = 0.5
"""A bundle that is free no longer was handed over, and not lost."""

PUBLISHED_WITHIN_S = WITHIN_S + 3.5
"""A client waits 1.5 s for a frozen broker, and up to a second before each new try."""

Fault = Callable[[FaultCluster, Random], Awaitable[Disturbance]]
"""Breaks something in a running cluster, mends it, and tells when it was broken."""


def drawn_from(seed: int) -> Random:
    """Return a generator that draws the same victims for the same seed."""
    return Random(seed)  # noqa: S311 - no secret is drawn


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one fault did.

    Times count from the fault, or from when it was mended if the cluster cannot get over
    it by itself: ``recovery_s`` until the last bundle was served again, ``published_s``
    until the last topic whose messages were refused had one taken.
    """

    fault: str
    verdict: Verdict
    recovery_s: float
    published_s: float


async def observe(cluster: FaultCluster, name: str, fault: Fault, rng: Random) -> Outcome:
    """Let a fault happen to a healthy cluster, and judge everything so far."""
    from_s = monotonic()
    disturbance = await fault(cluster, rng)
    await cluster.until_well(since_s=disturbance.healed_s)
    await cluster.restore()
    settled_s = monotonic()
    await asyncio.sleep(SETTLED_S)
    await cluster.until_well(since_s=settled_s)
    until_s = monotonic()
    history = cluster.history([disturbance], from_s=from_s, until_s=until_s)
    found = gaps(history.spells, history.bundles, from_s=from_s, until_s=until_s)
    return Outcome(
        fault=name,
        verdict=judge(history),
        recovery_s=recovery_s(found, disturbance, longer_than_s=HAND_OVER_S),
        published_s=publish_recovery_s(history.publishes, disturbance),
    )


def publish_recovery_s(publishes: Sequence[Publish], disturbance: Disturbance) -> float:
    """Return how long after healing the last topic that had long been refused was taken again."""
    refused: dict[str, float] = {}
    ended_s = disturbance.healed_s
    for one in sorted(publishes, key=lambda publish: publish.answered_s):
        if one.acknowledgement is None:
            refused.setdefault(one.topic, one.sent_s)
            continue
        since_s = refused.pop(one.topic, one.answered_s)
        long = one.answered_s - since_s > HAND_OVER_S
        if long and disturbance.began_s <= since_s <= disturbance.due_s:
            ended_s = max(ended_s, one.answered_s)
    return ended_s - disturbance.healed_s


def now(what: str, began_s: float) -> Disturbance:
    """Return a fault that the cluster has to get over by itself from ``began_s`` on."""
    return Disturbance(what=what, began_s=began_s, healed_s=began_s, within_s=WITHIN_S)


def outage(what: str, began_s: float) -> Disturbance:
    """Return a loss of ZooKeeper that ends now: sessions and locks may be gone."""
    return Disturbance(what=what, began_s=began_s, healed_s=monotonic(), within_s=WITHIN_S)
