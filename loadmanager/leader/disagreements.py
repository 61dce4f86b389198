"""What was found not to agree: reported to the log, the metrics and the decision log."""

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
    """In which way orders, locks, lists, reports and boundaries do not agree."""

    STRAY_LOCK = "stray_lock"
    """A lock that no broker lists: none will drop it."""

    LOCKS_UNTAKEN = "locks_untaken"
    """A broker that takes no lock of what it is ordered to own: it gets nothing for a while."""

    STUCK_HAND_OVER = "stuck_hand_over"
    """A bundle that its planned owner has not got for too long."""

    ORDERS_CHANGED = "orders_changed"
    """Orders that are not those which the leader wrote."""

    UNKNOWN_RANGE = "unknown_range"
    """An ordered bundle that its namespace's boundaries do not have."""

    VANISHED_NAMESPACE = "vanished_namespace"
    """A bundle of a deleted namespace."""

    SERVED_UNLOCKED = "served_unlocked"
    """A bundle that a broker reports to serve after another broker took the lock."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One disagreement; ``repaired`` is True if the leader repaired it."""

    kind: Kind
    subject: BundleId | BrokerId
    detail: str
    repaired: bool


def report(found: Iterable[Disagreement], metrics: Metrics, decision_log: DecisionLog) -> None:
    """Report everything that one look found, and nothing that is over."""
    found = list(found)
    for one in found:
        event = "cluster.state.repaired" if one.repaired else "cluster.state.doubted"
        log.warning(event, kind=one.kind.value, subject=one.subject, detail=one.detail)
    details: dict[str, list[str]] = {}
    for one in found:
        details.setdefault(one.subject, []).append(f"{one.kind}: {one.detail}")
    decision_log.unplaced(
        Refusal(subject, Reason.OUT_OF_STEP, "; ".join(said)) for subject, said in details.items()
    )
    metrics.disagreements_found(Counter(one.kind.value for one in found), (*map(str, Kind),))
