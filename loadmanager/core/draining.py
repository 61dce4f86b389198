"""Which bundles leave draining brokers next: a few at a time.

A draining broker gives everything away and takes nothing. Only a few of its bundles are
under way at any moment, so that clients reconnect in small groups; each leaves when it
has a place to go to, and one that has none stays where it is served.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from loadmanager.core.ids import BrokerId, BundleId

TRY_AGAIN_S: Final = 2.0
"""A bundle that no broker could take is left alone for so long."""


class Drains:
    """Picks what is to leave, and leaves alone what no broker could take a moment ago."""

    def __init__(self) -> None:
        self._again_s: dict[BundleId, float] = {}

    def due(
        self,
        staying: Iterable[tuple[BundleId, BrokerId]],
        most: Mapping[BrokerId, int],
        now_s: float,
    ) -> dict[BundleId, BrokerId]:
        """Return which of the bundles ``staying`` are to leave now, each with its broker.

        ``most`` is how many more may be under way from each draining broker; without any
        draining broker everything refused so far is forgotten.
        """
        if not most:
            self._again_s.clear()
        left, found = dict(most), dict[BundleId, BrokerId]()
        for bundle, broker in staying:
            if left[broker] > 0 and self._again_s.get(bundle, now_s) <= now_s:
                found[bundle] = broker
                left[broker] -= 1
        return found

    def refused(self, bundles: Iterable[BundleId], now_s: float) -> None:
        """Leave these alone for a moment."""
        self._again_s.update(dict.fromkeys(bundles, now_s + TRY_AGAIN_S))
