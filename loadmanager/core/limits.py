"""Limits of a round, for strategies that choose targets themselves."""

from dataclasses import dataclass
from typing import Protocol

from loadmanager.core.columns import Mask


class Restricted(Protocol):
    """Which brokers may take a bundle of a namespace with policies, after the moves so far."""

    def targets(self, bundle: int) -> Mask:
        """Return which broker rows may take the bundle of that row."""

    def moved(self, bundle: int, target: int) -> None:
        """Count a move that was chosen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a round, for a strategy that chooses targets itself.

    ``gives`` and ``takes`` are broker rows that may give or take any bundle, ``movable`` the
    bundle rows that may move, ``moves`` how many may at most. ``restricted`` is None where
    no policy distinguishes bundles.
    """

    gives: Mask
    takes: Mask
    movable: Mask
    moves: int = 1_000_000
    restricted: Restricted | None = None
