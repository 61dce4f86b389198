"""Whose bundles wait for their broker to come back, and whose go to others at once.

One broker that vanishes has crashed: its bundles go on at once. Many that vanish
together, or are missing when this sidecar has itself only just got its connection, are
more likely to be back in a moment: an outage of the service ended everybody's session,
or everything was restarted. Who registers first must not get it all.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import structlog

from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.leader.task_controller import TaskController

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class AbsentBrokers:
    """The brokers that should own bundles and are not registered, for one term.

    Args:
        parts: of this sidecar.
        tasks: have who should own what.
        tuning: ``return_wait_s`` is how long an absent broker is waited for, at most, from
            when it was missed; more than ``max_lost_fraction`` of the brokers, and more
            than one, are many.
    """

    context: Context
    tasks: TaskController
    tuning: RuntimeSettings
    # Also of those whose bundles were placed since: sessions that were cut together
    # end up to a heartbeat apart.
    _missed_at_s: dict[BrokerId, float] = field(default_factory=dict, init=False)
    _awaited_until_s: dict[BrokerId, float] = field(default_factory=dict, init=False)

    def orphans(self) -> Mapping[BundleId, BrokerId]:
        """Return the bundles whose planned owner is not registered, with that owner."""
        brokers = self.context.cluster_state.brokers
        if not brokers or not self.context.cluster_state.current:
            return {}
        return {b: planned for b, planned in self.tasks.assigned.items() if planned not in brokers}

    def awaited(self, orphans: Mapping[BundleId, BrokerId]) -> Mapping[BundleId, float]:
        """Return which of these wait for their broker's return, and for how many seconds yet."""
        now_s = self.context.clock.monotonic_s()
        if not self.context.cluster_state.current:
            return {}  # Nobody can be missed, nor seen to be back.
        self._observe(set(orphans.values()), now_s)
        left_s = {broker: until_s - now_s for broker, until_s in self._awaited_until_s.items()}
        waiting = {b: left_s[to] for b, to in orphans.items() if left_s.get(to, 0.0) > 0.0}
        self.context.metrics.bundles_awaiting_return.set(len(waiting))
        return waiting

    def _observe(self, absent: set[BrokerId], now_s: float) -> None:
        for broker in self._missed_at_s.keys() - absent:
            if broker in self.context.cluster_state.brokers or self._is_old(broker, now_s):
                del self._missed_at_s[broker]
            self._awaited_until_s.pop(broker, None)
        for broker in absent:
            self._missed_at_s.setdefault(broker, now_s)
        awaited = dict(self._computed(absent))
        new = {broker for broker in awaited if broker not in self._awaited_until_s}
        for broker, until_s in awaited.items():
            self._awaited_until_s[broker] = max(self._awaited_until_s.get(broker, 0.0), until_s)
        if new:
            wait_s = max(self._awaited_until_s[broker] for broker in new) - now_s
            log.warning("broker.return.awaited", brokers=sorted(new), wait_s=round(wait_s, 3))

    def _computed(self, absent: set[BrokerId]) -> Iterator[tuple[BrokerId, float]]:
        """Yield who is waited for and until when, as things are now.

        A wait that has begun is not cut short when others return; and it never grows
        beyond ``wait_s``, however often the connection breaks or others leave.
        """
        many = self._are_many(len(self._missed_at_s))
        # A broker that crashes is missed a session timeout later: a leader that was connected
        # for as long has watched it, and need not give anybody time to connect as well.
        session_s = self.context.coordination.session.timeout_s
        connected_s = self.context.cluster_state.connected_at_s + session_s
        for broker in absent:
            latest_s = self._missed_at_s[broker] + self.tuning.now.rhythm.return_wait_s
            until_s = latest_s if many else min(latest_s, connected_s)
            if until_s > self._missed_at_s[broker]:
                yield broker, until_s

    def _is_old(self, broker: BrokerId, now_s: float) -> bool:
        """Say whether it was missed so long ago that it vanished with nobody missed now."""
        session_s = self.context.coordination.session.timeout_s
        return now_s - self._missed_at_s[broker] > session_s

    def _are_many(self, absent: int) -> bool:
        known = absent + len(self.context.cluster_state.brokers)
        many = self.tuning.now.planner.settings.max_lost_fraction
        return absent > 1 and absent > many * known
