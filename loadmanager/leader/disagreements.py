from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

import structlog

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Reason, Refusal
from loadmanager.leader.decision_log import DecisionLog
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


class Kind(StrEnum):
    STRAY_LOCK = "stray_lock"
    """A lock that is in no owned list: no broker will drop it."""

    LOCKS_UNTAKEN = "locks_untaken"
    """A broker that takes none of its ordered locks: it is assigned no bundles for a while."""

    STUCK_HAND_OVER = "stuck_hand_over"
    """A bundle that its planned owner has not acquired in time."""

    ORDERS_CHANGED = "orders_changed"
    """Orders that differ from those written by the leader."""

    UNKNOWN_RANGE = "unknown_range"
    """An ordered bundle that is not in its namespace's boundaries."""

    VANISHED_NAMESPACE = "vanished_namespace"
    """A bundle of a deleted namespace."""

    SERVED_UNLOCKED = "served_unlocked"
    """A bundle that a broker reports as served after another broker took the lock."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One inconsistency; ``repaired`` is True if the leader repaired it."""

    kind: Kind
    subject: BundleId | BrokerId
    detail: str
    repaired: bool


def report(
    found: Iterable[Disagreement],
    kinds: Iterable[Kind],
    metrics: Metrics,
    decision_log: DecisionLog,
) -> None:
    """Report all inconsistencies of one check; resolved ones of ``kinds`` are cleared."""
    found = list(found)
    for one in found:
        event = "cluster.state.repaired" if one.repaired else "cluster.state.inconsistent"
        log.warning(event, kind=one.kind.value, subject=one.subject, detail=one.detail)
    details: dict[str, list[str]] = {}
    for one in found:
        details.setdefault(one.subject, []).append(f"{one.kind}: {one.detail}")
    decision_log.unplaced(
        Refusal(subject, Reason.OUT_OF_STEP, "; ".join(said)) for subject, said in details.items()
    )
    metrics.disagreements_found(Counter(one.kind.value for one in found), [*map(str, kinds)])
