from dataclasses import dataclass, field

import numpy as np

from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.planner import Planner
from loadmanager.core.shadow import Seen, Shadow, after_round
from loadmanager.leader.history_recorder import HistoryRecorder


@dataclass(slots=True)
class Shadows:
    """The shadows of one term, by the classes of their strategies.

    Each starts from the leader's view when it is configured or the term begins.
    """

    context: Context
    settings: RuntimeSettings
    recorder: HistoryRecorder
    shadows: dict[str, Shadow] = field(default_factory=dict)
    _planners: dict[str, Planner] = field(default_factory=dict)
    _rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    async def round_over(self, seen: Seen) -> None:
        self._follow_configuration()
        for strategy, planner in self._planners.items():
            try:
                shadow = await self.context.computing.compute(
                    after_round, self.shadows[strategy], planner, seen, self._rng
                )
            except Exception as error:  # noqa: BLE001 - no shadow disturbs the leader
                self.context.unexpected.caught("round", error)
                continue
            self.shadows[strategy] = shadow
            self.context.metrics.shadows.after_round(strategy, shadow)
            self.recorder.shadowed(strategy, shadow.rounds[-1])

    def _follow_configuration(self) -> None:
        wanted = self.settings.now.shadows
        for strategy in self._planners.keys() - wanted.keys():
            self._forget(strategy)
        for strategy, configured in wanted.items():
            if self._planners.get(strategy) != configured:
                self.shadows[strategy], self._planners[strategy] = Shadow(), configured

    def _forget(self, strategy: str) -> None:
        del self._planners[strategy], self.shadows[strategy]
        self.context.metrics.shadows.forget(strategy)

    def end(self) -> None:
        for strategy in list(self._planners):
            self._forget(strategy)
