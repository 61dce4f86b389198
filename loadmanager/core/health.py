"""Decides from its last responses whether a broker is healthy, and whether it may be drained.

The state changes only after several consecutive responses that contradict it. So a single
failure does not drain a broker, and a single success does not readmit an unhealthy one.
"""

from collections.abc import Collection
from dataclasses import dataclass

from loadmanager.core.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """How the health of a broker is checked; an ``interval_s`` of 0 disables the check.

    ``timeout_s`` is the limit for a response. ``unhealthy_after`` consecutive failures or
    ``healthy_after`` consecutive successes change the state.
    """

    interval_s: float = 2.0
    timeout_s: float = 2.0
    unhealthy_after: int = 3
    healthy_after: int = 3


@dataclass(frozen=True, slots=True)
class Health:
    healthy: bool = True
    contradictions: int = 0


def after(rules: HealthRules, health: Health, *, good: bool) -> Health:
    if good is health.healthy:
        return Health(health.healthy)
    needed = rules.healthy_after if good else rules.unhealthy_after
    contradictions = health.contradictions + 1
    if contradictions >= needed:
        return Health(good)
    return Health(health.healthy, contradictions)


def may_be_drained(
    me: BrokerId, brokers: Collection[BrokerId], draining: Collection[BrokerId]
) -> bool:
    """Return whether an unhealthy broker may shed its bundles.

    At most half of the brokers may, including draining ones: if all appear unhealthy at once,
    the check itself is probably wrong, and no broker would remain to serve. If too many are
    unhealthy, those with the smallest names may, so that all sidecars agree.
    """
    off = sorted({*draining, me})
    return off.index(me) < len({*brokers, me}) // 2
