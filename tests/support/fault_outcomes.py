"""What a fault came to: how soon all was served again, and whether a promise was broken."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from time import monotonic

from fault_cluster import HAND_OVER_S, FaultCluster
from fault_hosts import SESSION_S, TICK_S, WITHIN_S, Host
from fault_stalls import Slowness, Stalls

from tests.testbed.checker.availability import Disturbance, Gap, gaps, recovery_s
from tests.testbed.checker.publishes import Publish
from tests.testbed.checker.verdict import History, Verdict, judge

PAUSE_S = SESSION_S + TICK_S + 0.8
"""Longer than the session lives, and long enough for others to have taken over."""

SETTLED_S = 0.5
PUBLISHED_WITHIN_S = WITHIN_S + 3.5
"""A client waits 1.5 s for a frozen broker, and up to a second before each new try."""

MOST_ATTEMPTS = 3
Fault = Callable[[FaultCluster, Random], Awaitable[Disturbance]]
"""Breaks something in a running cluster, mends it, and tells when it was broken."""


def drawn_from(seed: int) -> Random:
    return Random(seed)  # noqa: S311 - no secret is drawn


class Finding(StrEnum):
    KEPT = "kept"
    BROKEN = "BROKEN"
    INCONCLUSIVE = "inconclusive"
    """Nobody served a bundle for too long, while the machine itself stood still."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one fault did.

    Times count from the fault, or from when it was mended if the cluster cannot get over
    it by itself: ``recovery_s`` until the last bundle was served again, ``published_s``
    until the last topic whose messages were refused had one taken. ``within_s`` bounds
    the first. ``slowness`` is the machine's from the fault until all was well.
    ``unserved_s`` is the longest that nobody served a bundle while the fault lasted.
    """

    fault: str
    verdict: Verdict
    recovery_s: float
    published_s: float
    within_s: float
    slowness: Slowness
    finding: Finding
    unserved_s: float

    def __str__(self) -> str:
        told = (
            f"{self.fault:46} served again after {self.recovery_s:5.2f} s of {self.within_s:.2f}, "
            f"taken again after {self.published_s:5.2f} s: {self.finding}"
        )
        why = [str(self.slowness)] if self.finding is Finding.INCONCLUSIVE else []
        return "\n  ".join((told, *why, *self.verdict.violations))


async def observe(cluster: FaultCluster, name: str, fault: Fault, rng: Random) -> Outcome:
    from_s = monotonic()
    disturbance = await fault(cluster, rng)
    await cluster.until_well(since_s=max(disturbance.healed_s, monotonic() - SETTLED_S))
    await cluster.restore()
    settled_s = monotonic()
    await asyncio.sleep(SETTLED_S)
    await cluster.until_well(since_s=settled_s)
    until_s = monotonic()
    history = cluster.history([disturbance], from_s=from_s, until_s=until_s)
    return _outcome(name, history, disturbance, cluster.stalls())


async def observe_until_sure(
    cluster: FaultCluster, name: str, fault: Fault, rng: Random
) -> Sequence[Outcome]:
    """Observe a fault, and again where the machine left it open; return every outcome."""
    outcomes: list[Outcome] = []
    while len(outcomes) < MOST_ATTEMPTS:
        outcomes.append(await observe(cluster, name, fault, rng))
        if outcomes[-1].finding is not Finding.INCONCLUSIVE:
            break
    return outcomes


def _outcome(name: str, history: History, disturbance: Disturbance, stalls: Stalls) -> Outcome:
    found = gaps(history.intervals, history.bundles, from_s=history.from_s, until_s=history.until_s)
    verdict = judge(history)
    recovered_s = recovery_s(found, disturbance, hand_over_s=HAND_OVER_S)
    return Outcome(
        fault=name,
        verdict=verdict,
        recovery_s=recovered_s,
        published_s=publish_recovery_s(history.publishes, disturbance),
        within_s=disturbance.within_s,
        slowness=stalls.between(disturbance.began_s, disturbance.healed_s + recovered_s),
        finding=finding(verdict, disturbance, stalls),
        unserved_s=max((gap.lasted_s for gap in _during(disturbance, found)), default=0.0),
    )


def _during(disturbance: Disturbance, found: Iterable[Gap]) -> Iterator[Gap]:
    for gap in found:
        if gap.end_s > disturbance.began_s and gap.start_s < disturbance.healed_s:
            yield gap


def finding(verdict: Verdict, disturbance: Disturbance, stalls: Stalls) -> Finding:
    """Return what a verdict comes to: only bounds on time are promises of a machine with room."""
    if verdict.overlaps or verdict.misplaced or verdict.token_faults:
        return Finding.BROKEN
    if not verdict.unserved:
        return Finding.KEPT
    explained = all(_explained(gap, disturbance, stalls) for gap in verdict.unserved)
    return Finding.INCONCLUSIVE if explained else Finding.BROKEN


def _explained(gap: Gap, disturbance: Disturbance, stalls: Stalls) -> bool:
    """Return whether the machine stood still for as long as a gap lasted too long.

    That is its time beyond what the fault accounts for; a session that ended by itself
    was lost in the time before.
    """
    felt = gap.end_s > disturbance.began_s and gap.start_s < disturbance.due_s
    late_s = gap.end_s - disturbance.due_s if felt and gap.end_s > disturbance.due_s else 0.0
    late_s = late_s or gap.lasted_s
    return stalls.between(gap.start_s - SESSION_S, gap.end_s).explains(late_s)


def publish_recovery_s(publishes: Sequence[Publish], disturbance: Disturbance) -> float:
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


def now(what: str, began_s: float, *hosts: Host) -> Disturbance:
    return Disturbance(
        what=what,
        began_s=began_s,
        healed_s=began_s,
        within_s=WITHIN_S,
        brokers=frozenset(host.broker for host in hosts),
    )


def outage(what: str, began_s: float) -> Disturbance:
    """Return a loss of ZooKeeper that ends now: sessions and locks may be gone, anybody's."""
    return Disturbance(what=what, began_s=began_s, healed_s=monotonic(), within_s=WITHIN_S)
