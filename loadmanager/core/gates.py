"""Conditions under which a round sheds nothing, because its data may be wrong."""

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.planner_settings import PlannerSettings

_LEAST_BROKERS = 2


def closed_gate(
    view: ClusterView, settings: PlannerSettings, max_report_age_s: float
) -> Refusal | None:
    """Return why no bundle may be shed in this round, None if shedding is allowed.

    These conditions never prevent the placement of bundles without an owner: an unserved bundle
    is worse than a badly placed one.
    """
    if not settings.shedding:
        return Refusal("", Reason.SHEDDING_OFF)
    count = len(view.brokers.names)
    if count < _LEAST_BROKERS:
        return Refusal("", Reason.TOO_FEW_BROKERS, f"{count} brokers")
    lost = sum(view.now_s - left_s < settings.lost_window_s for left_s in view.departures_s)
    if lost > settings.max_lost_fraction * (count + lost):
        return Refusal("", Reason.BROKERS_LOST, f"{lost} of {count + lost} lately")
    changed_s = view.now_s - view.membership_changed_s
    if changed_s < settings.settle_s:
        return Refusal("", Reason.MEMBERSHIP_CHANGING, f"changed {changed_s:.0f} s ago")
    stale = int(np.count_nonzero(view.age_s > max_report_age_s))
    if stale > settings.max_stale_fraction * count:
        return Refusal("", Reason.REPORTS_STALE, f"{stale} of {count} brokers")
    return None
