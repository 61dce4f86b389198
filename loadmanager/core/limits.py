"""Limits of a round for strategies that choose targets themselves."""

from dataclasses import dataclass
from typing import Protocol

from loadmanager.core.columns import Mask


class Restricted(Protocol):
    """The brokers that may take a bundle of a namespace with policies, after the moves so far."""

    def targets(self, bundle: int) -> Mask:
        """Return which broker rows may take the bundle of that row."""

    def moved(self, bundle: int, target: int) -> None:
        """Record a chosen move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a round, for a strategy that chooses targets itself.

    ``gives`` and ``takes`` are the broker rows that may shed or take bundles, ``movable`` the
    bundle rows that may move, and ``moves`` the maximum number of moves. ``restricted`` is None
    if no policy distinguishes between bundles.
    """

    gives: Mask
    takes: Mask
    movable: Mask
    moves: int = 1_000_000
    restricted: Restricted | None = None
