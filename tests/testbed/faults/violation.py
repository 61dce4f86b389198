"""The invariants that fault runs check, and their violations."""

from collections.abc import Callable
from enum import StrEnum


class Invariant(StrEnum):
    """The invariants; docs/faults.md describes each in full."""

    ONE_SERVER = "one_server"
    """At most one broker process serves a position of the hash circle."""
    TOKENS_GROW = "tokens_grow"
    """Fencing tokens of what is served, and epochs of leaders, only grow."""
    SERVED_AGAIN = "served_again"
    """A bundle that was served is served again within the bound."""
    SOMEBODY_LEADS = "somebody_leads"
    """A sidecar leads within the bound, if one is healthy."""
    SERVED_WHEN_ASKED = "served_when_asked"
    """A looked-up bundle is served within the bound, if a broker is fit."""
    ORDERS_OF_THE_TERM = "orders_of_the_term"
    """No write of orders by a former leader takes effect."""
    LOOKUPS_NAME_OWNERS = "lookups_name_owners"
    """A lookup never names a broker that cannot own the bundle."""
    ANSWERS_GO_ON = "answers_go_on"
    """The tokens and epochs in the answers of one sidecar never decrease."""
    NOTHING_UNHEARD = "nothing_unheard"
    """No unexpected exception ends a process or a task."""
    SETTLES = "settles"
    """After all faults are repaired, the cluster settles."""


class Violation(AssertionError):
    """An invariant was broken.

    ``at_s`` is the virtual time, ``subject`` the bundle, broker or process concerned, and
    ``seen`` describes the observation.
    """

    def __init__(self, invariant: Invariant, at_s: float, subject: str, seen: str) -> None:
        super().__init__(f"{invariant.value} broken at {at_s:.3f} s: {subject}: {seen}")
        self.invariant = invariant
        self.at_s = at_s
        self.subject = subject
        self.seen = seen


Report = Callable[[Invariant, str, str], None]
"""Records a violation, given its invariant, subject and observation; the run ends soon after."""
