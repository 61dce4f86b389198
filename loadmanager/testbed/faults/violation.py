"""What a run of faults may find: a promise that was not kept."""

from enum import StrEnum
from typing import Protocol


class Invariant(StrEnum):
    """What must be true whatever happens. docs/simulated-faults.md says each in full."""

    ONE_SERVER = "one_server"
    """At most one broker process serves a position of the hash circle."""
    TOKENS_GROW = "tokens_grow"
    """Fencing tokens of what is served, and epochs of leaders, only grow."""
    SERVED_AGAIN = "served_again"
    """What was served is served again within the bound."""
    SOMEBODY_LEADS = "somebody_leads"
    """Some sidecar leads within the bound, where one can."""
    SERVED_WHEN_ASKED = "served_when_asked"
    """What is asked for is served within the bound, where a broker can."""
    ORDERS_OF_THE_TERM = "orders_of_the_term"
    """No order of an old epoch takes effect."""
    LOOKUPS_NAME_OWNERS = "lookups_name_owners"
    """A lookup never names a broker that cannot own the bundle."""
    ANSWERS_GO_ON = "answers_go_on"
    """The tokens and epochs that one sidecar answers with never go back."""
    NOTHING_UNHEARD = "nothing_unheard"
    """No exception ends a process or a task unheard."""
    SETTLES = "settles"
    """After all faults have ended everything is as it should be."""


class Violation(AssertionError):
    """An invariant was broken.

    ``at_s`` is the cluster's clock, ``subject`` the bundle, broker or process it was
    seen at, ``seen`` what was seen there.
    """

    def __init__(self, invariant: Invariant, at_s: float, subject: str, seen: str) -> None:
        super().__init__(f"{invariant.value} broken at {at_s:.3f} s: {subject}: {seen}")
        self.invariant = invariant
        self.at_s = at_s
        self.subject = subject
        self.seen = seen


class Report(Protocol):
    """Takes up what was found, and lets the run end there."""

    def __call__(self, invariant: Invariant, subject: str, seen: str) -> None:
        """Report that ``invariant`` is broken at ``subject``."""
