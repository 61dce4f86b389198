"""Whose bundles wait for their broker to come back: the rules of a live leader's absences."""

from collections.abc import Collection, Mapping
from typing import Final

from loadmanager.core.ids import BrokerId, BundleId

SESSION_S: Final = 30.0
"""How long a session lasts without a sign of life, unless a scenario says something else."""


class Absent:
    """The brokers that should own bundles and are not registered.

    One broker that vanishes has crashed, and its bundles go on at once. Many that vanish
    together are more likely to be back in a moment: their bundles wait for
    ``return_wait_s``. Those that vanish within ``session_s`` of each other count as
    together. The leader has been connected for long.
    """

    def __init__(
        self, return_wait_s: float, max_lost_fraction: float, *, session_s: float = SESSION_S
    ) -> None:
        self._return_wait_s = return_wait_s
        self._max_lost_fraction = max_lost_fraction
        self._session_s = session_s
        self._missed_at_s: dict[BrokerId, float] = {}
        self._awaited_until_s: dict[BrokerId, float] = {}

    def awaited(
        self, now_s: float, orphans: Mapping[BundleId, BrokerId], known: Collection[BrokerId]
    ) -> frozenset[BundleId]:
        """Return which of these bundles, each with its absent owner, are kept for it.

        ``known`` are the registered brokers.
        """
        if not orphans and not self._missed_at_s:
            return frozenset()
        absent = set(orphans.values())
        self._observe(now_s, absent, known)
        until_s = self._awaited_until_s
        return frozenset(
            bundle for bundle, owner in orphans.items() if until_s.get(owner, 0.0) > now_s
        )

    def _observe(self, now_s: float, absent: set[BrokerId], known: Collection[BrokerId]) -> None:
        for broker in self._missed_at_s.keys() - absent:
            if broker in known or now_s - self._missed_at_s[broker] > self._session_s:
                del self._missed_at_s[broker]
            self._awaited_until_s.pop(broker, None)
        for broker in absent:
            self._missed_at_s.setdefault(broker, now_s)
        missed = len(self._missed_at_s)
        if missed > 1 and missed > self._max_lost_fraction * (missed + len(known)):
            for broker in absent:
                until_s = self._missed_at_s[broker] + self._return_wait_s
                self._awaited_until_s[broker] = max(self._awaited_until_s.get(broker, 0.0), until_s)
