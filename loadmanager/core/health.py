"""Whether a broker counts as healthy, by its last answers, and whether it may be let off.

Answers come one by one; a few in a row that contradict the present belief change it, so
that neither a hiccup takes a broker out nor a lucky answer brings a sick one back.
"""

from collections.abc import Collection
from dataclasses import dataclass

from loadmanager.core.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthRules:
    """How a broker is asked after its health; ``interval_s`` 0 is never.

    ``timeout_s`` is how long an answer may take. ``unhealthy_after`` failures in a row
    and ``healthy_after`` good answers in a row change the belief.
    """

    interval_s: float = 2.0
    timeout_s: float = 2.0
    unhealthy_after: int = 3
    healthy_after: int = 3


@dataclass(frozen=True, slots=True)
class Health:
    """The belief, and how many answers in a row have contradicted it."""

    healthy: bool = True
    contradictions: int = 0


def after(rules: HealthRules, health: Health, *, good: bool) -> Health:
    """Return the belief after one more answer."""
    if good is health.healthy:
        return Health(health.healthy)
    needed = rules.healthy_after if good else rules.unhealthy_after
    contradictions = health.contradictions + 1
    if contradictions >= needed:
        return Health(good)
    return Health(health.healthy, contradictions)


def may_be_let_off(
    me: BrokerId, brokers: Collection[BrokerId], draining: Collection[BrokerId]
) -> bool:
    """Return whether an unhealthy broker may give its bundles away.

    At most half of the brokers may, draining ones counted: if all are found sick at
    once, it is more likely the question that is wrong, and no broker would be left to serve.
    Of too many those with the smallest names go, so that all sidecars agree on which.
    """
    off = sorted({*draining, me})
    return off.index(me) < len({*brokers, me}) // 2
