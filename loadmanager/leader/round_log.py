"""What a round decided, reported to the log and the metrics."""

import structlog

from loadmanager.core.planner import Plan
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


def report_plan(metrics: Metrics, strategy: str, plan: Plan, epoch: int) -> None:
    """Report each move, and each thing that was left alone with its reason."""
    for move in (*plan.moves, *plan.observed):
        metrics.moves.labels(strategy, move.cause.value).inc()
        log.info(
            "bundle.move.decided" if plan.moves else "bundle.move.observed",
            bundle=move.bundle,
            source=move.source,
            target=move.target,
            cause=move.cause.value,
            epoch=epoch,
        )
    for refusal in plan.refusals:
        metrics.refusals.labels(strategy, refusal.reason.value).inc()
        log.debug(
            "round.subject.refused",
            subject=refusal.subject or "cluster",
            reason=refusal.reason.value,
            detail=refusal.detail,
        )
