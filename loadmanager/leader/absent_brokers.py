from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.absences import AbsenceRules, Absences
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.leader.task_controller import TaskController

log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class AbsentBrokers:
    context: Context
    tasks: TaskController
    settings: RuntimeSettings
    _absences: Absences = field(default_factory=Absences, init=False)

    def orphans(self) -> Mapping[BundleId, BrokerId]:
        brokers = self.context.cluster_state.brokers
        if not brokers or not self.context.cluster_state.current:
            return {}
        return {b: planned for b, planned in self.tasks.assigned.items() if planned not in brokers}

    def awaited(self, orphans: Mapping[BundleId, BrokerId]) -> Mapping[BundleId, float]:
        now_s, state = self.context.clock.monotonic_s(), self.context.cluster_state
        if not state.current:
            return {}  # Neither departures nor returns can be observed.
        new = self._absences.observe(now_s, set(orphans.values()), state.brokers, self._rules())
        if new:
            wait_s = round(max(new.values()), 3)
            log.warning("broker.return.awaited", brokers=sorted(new), wait_s=wait_s)
        until_s = self._absences.awaited_until_s
        waiting = {
            bundle: until_s[broker] - now_s
            for bundle, broker in orphans.items()
            if until_s.get(broker, now_s) > now_s
        }
        self.context.metrics.bundles_awaiting_return.set(len(waiting))
        return waiting

    def _rules(self) -> AbsenceRules:
        session_s, settings = self.context.coordination.session.timeout_s, self.settings.now
        return AbsenceRules(
            return_wait_s=settings.rhythm.return_wait_s,
            max_lost_fraction=settings.planner.settings.max_lost_fraction,
            session_s=session_s,
            # A crashed broker is missed one session timeout later: a leader connected for that
            # long has watched it.
            connected_s=self.context.cluster_state.connected_at_s + session_s,
        )
