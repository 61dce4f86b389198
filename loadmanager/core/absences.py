"""When bundles of brokers that are absent, or drain, are placed elsewhere.

A single broker that vanishes has crashed, and its bundles are reassigned at once. If many vanish
together, or are missing just after the leader itself has connected, they are likely to return
soon: an outage of the coordination service expired every session, or the whole cluster was
restarted. The first broker to register must not receive every bundle.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from loadmanager.core.ids import BrokerId, BundleId


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceRules:
    """How long absent brokers are waited for.

    The leader waits for a broker for at most ``return_wait_s`` after it was first missed, and
    only if many are absent: more than one, and more than ``max_lost_fraction`` of all brokers.
    Brokers that vanish within ``session_s``, the session timeout, count as vanishing together.
    Until ``connected_s`` the leader waits for every absent broker, since it has not watched any
    of them yet.
    """

    return_wait_s: float
    max_lost_fraction: float
    session_s: float
    connected_s: float = float("-inf")


class Absences:
    def __init__(self) -> None:
        # Includes brokers whose bundles were placed since: sessions cut off together expire up
        # to one heartbeat apart.
        self._missed_at_s: dict[BrokerId, float] = {}
        self.awaited_until_s: dict[BrokerId, float] = {}

    def observe(
        self,
        now_s: float,
        absent: AbstractSet[BrokerId],
        registered: Collection[BrokerId],
        rules: AbsenceRules,
    ) -> Mapping[BrokerId, float]:
        """Record the absent brokers; return the new waits, in seconds by broker.

        A wait that has begun is not shortened when other brokers return, and never exceeds
        ``return_wait_s``, however often the connection breaks or others leave.
        """
        for broker in self._missed_at_s.keys() - absent:
            if broker in registered or now_s - self._missed_at_s[broker] > rules.session_s:
                del self._missed_at_s[broker]
            self.awaited_until_s.pop(broker, None)
        for broker in absent:
            self._missed_at_s.setdefault(broker, now_s)
        awaited = dict(self._awaited(absent, len(registered), rules))
        new = awaited.keys() - self.awaited_until_s.keys()
        for broker, until_s in awaited.items():
            self.awaited_until_s[broker] = max(self.awaited_until_s.get(broker, 0.0), until_s)
        return {broker: self.awaited_until_s[broker] - now_s for broker in new}

    def _awaited(
        self, absent: AbstractSet[BrokerId], registered: int, rules: AbsenceRules
    ) -> Iterator[tuple[BrokerId, float]]:
        missed = len(self._missed_at_s)
        many = missed > 1 and missed > rules.max_lost_fraction * (missed + registered)
        for broker in absent:
            latest_s = self._missed_at_s[broker] + rules.return_wait_s
            until_s = latest_s if many else min(latest_s, rules.connected_s)
            if until_s > self._missed_at_s[broker]:
                yield broker, until_s


TRY_AGAIN_S: Final = 2.0
"""Delay before a bundle that no broker could take is tried again."""


class Drains:
    """Selects the next bundles to leave draining brokers, a few at a time.

    So clients reconnect in small groups. A bundle leaves only when another broker can take it;
    until then its broker keeps serving it.
    """

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
