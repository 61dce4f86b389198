"""Selects the next bundles to leave draining brokers, a few at a time.

A draining broker sheds all of its bundles and takes none. Only a few of its bundles are under
way at any time, so that clients reconnect in small groups. A bundle leaves only when another
broker can take it; until then its broker keeps serving it.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from loadmanager.core.ids import BrokerId, BundleId

TRY_AGAIN_S: Final = 2.0
"""Delay before a bundle that no broker could take is tried again."""


class Drains:
    def __init__(self) -> None:
        self._again_s: dict[BundleId, float] = {}

    def due(
        self,
        staying: Iterable[tuple[BundleId, BrokerId]],
        most: Mapping[BrokerId, int],
        now_s: float,
    ) -> dict[BundleId, BrokerId]:
        """Return the bundles of ``staying`` that are to leave now, each with its broker.

        ``most`` is how many more bundles may be under way from each draining broker. If no
        broker is draining, all earlier refusals are forgotten.
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
        """Exclude these bundles for `TRY_AGAIN_S`."""
        self._again_s.update(dict.fromkeys(bundles, now_s + TRY_AGAIN_S))
