"""Which absent brokers are waited for, and until when.

One broker that vanishes has crashed: its bundles go on at once. Many that vanish
together, or are missing when the leader itself has only just got its connection, are
more likely to be back in a moment: an outage of the service ended every session,
or everything was restarted. The first broker to register must not get every bundle.
"""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from loadmanager.core.ids import BrokerId


@dataclass(frozen=True, slots=True, kw_only=True)
class AbsenceRules:
    """How long absent brokers are waited for.

    A broker is waited for ``return_wait_s`` at most, from when it was missed. More than
    ``max_lost_fraction`` of the brokers, and more than one, are many. Brokers that vanish
    within ``session_s``, the timeout of a session, vanish together. Until ``connected_s`` any
    absent broker is waited for, since none was watched before.
    """

    return_wait_s: float
    max_lost_fraction: float
    session_s: float
    connected_s: float = float("-inf")


class Absences:
    """The brokers that should own bundles and are not registered, as one leader saw them go."""

    def __init__(self) -> None:
        # Also of brokers whose bundles were placed since: sessions that were cut together
        # end up to a heartbeat apart.
        self._missed_at_s: dict[BrokerId, float] = {}
        self.awaited_until_s: dict[BrokerId, float] = {}

    def observe(
        self,
        now_s: float,
        absent: AbstractSet[BrokerId],
        registered: Collection[BrokerId],
        rules: AbsenceRules,
    ) -> Mapping[BrokerId, float]:
        """Take note of the absent brokers; return those newly waited for, and for how long.

        A wait that has begun is not cut short when others return; and it never grows beyond
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
