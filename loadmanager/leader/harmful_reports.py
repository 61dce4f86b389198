"""Finds load reports that make decisions fail, and excludes their brokers.

A report that passes all checks of its figures but makes a sample, a view or a decision raise an
exception would stop balancing for the whole cluster, under this leader and the next. The leader
tries decisions on subsets of the reports, finds the harmful ones, and decides without their
brokers until they publish another report.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
import structlog

from loadmanager.common.cluster_loads import KnownLoads
from loadmanager.common.context import Context
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.planner import Planner
from loadmanager.core.policies import Policies
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.wire.standby import Standby, encode_standby

log = structlog.get_logger()

MOST_LEFT_OUT: Final = 8
MOST_TRIALS: Final = 60
SEARCH_EVERY_S: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The input of a trial decision besides the reports."""

    planner: Planner
    memory: RoundMemory
    assigned: Mapping[BundleId, BrokerId]
    policies: Policies


@dataclass(frozen=True, slots=True)
class _LeftOut:
    mzxid: int
    why: str


@dataclass(slots=True)
class HarmfulReports:
    """The brokers left out of decisions in one term, with reasons."""

    context: Context
    _left_out: dict[BrokerId, _LeftOut] = field(default_factory=dict)
    _not_before_s: float = -math.inf

    @property
    def brokers(self) -> Mapping[BrokerId, str]:
        """The brokers left out, each with the error that its report caused."""
        return {broker: one.why for broker, one in self._left_out.items()}

    def current(self) -> frozenset[BrokerId]:
        """Return the brokers still left out: those that have neither reported again nor left."""
        known = self.context.cluster_state.loads.reports
        for broker, one in list(self._left_out.items()):
            if broker not in known or known[broker].mzxid != one.mzxid:
                del self._left_out[broker]
                log.info("broker.report.retried", broker=broker)
        self._show()
        return frozenset(self._left_out)

    def leave_out(self, broker: BrokerId, error: Exception) -> None:
        """Leave a broker out until it publishes another report."""
        why = f"{type(error).__name__}: {error}"
        self._left_out[broker] = _LeftOut(
            self.context.cluster_state.loads.reports[broker].mzxid, why
        )
        log.error("broker.report.left_out", broker=broker, error=why)
        self._show()

    def end(self) -> None:
        """Clear the metric at the end of the term."""
        self._left_out.clear()
        self._show()

    def _show(self) -> None:
        self.context.metrics.brokers_left_out.set(len(self._left_out))

    async def search(self, trial: Trial) -> bool:
        """Leave out brokers whose reports make a decision fail; return whether any was found.

        If the decision fails without any report, no report is at fault. If more than a quarter
        of the brokers (or more than `MOST_LEFT_OUT`) would have to be left out, the program is
        at fault, and none is left out.
        """
        now_s = self.context.clock.monotonic_s()
        if now_s < self._not_before_s:
            return False
        self._not_before_s = now_s + SEARCH_EVERY_S  # Reset below if this search finds a report.
        left_out = self.current()
        brokers = sorted(
            broker for broker in self.context.cluster_state.loads.reports if broker not in left_out
        )
        if not brokers or await self._fails(trial, ()) is not None:
            return False
        most = min(MOST_LEFT_OUT, max(1, len(brokers) // 4))
        found: dict[BrokerId, Exception] = {}
        trials = iter(range(MOST_TRIALS))
        while brokers and (error := await self._fails(trial, brokers)) is not None:
            culprit = await self._last_of_shortest(trial, brokers, trials)
            if culprit is None or len(found) == most:
                log.error("broker.report.cause_not_found", brokers=len(brokers), error=repr(error))
                return False
            brokers.remove(culprit)
            found[culprit] = error
        known = self.context.cluster_state.loads.reports
        for broker, error in found.items():
            if broker in known:
                self.leave_out(broker, error)
        if found:
            self._not_before_s = now_s
        return bool(found)

    async def _last_of_shortest(
        self, trial: Trial, brokers: Sequence[BrokerId], trials: Iterator[int]
    ) -> BrokerId | None:
        """Return the last broker of the shortest failing prefix of ``brokers``."""
        sound, failing = 0, len(brokers)
        while failing - sound > 1:
            if next(trials, None) is None:
                return None
            middle = (sound + failing) // 2
            if await self._fails(trial, brokers[:middle]) is None:
                sound = middle
            else:
                failing = middle
        return brokers[failing - 1]

    async def _fails(self, trial: Trial, brokers: Sequence[BrokerId]) -> Exception | None:
        """Return the error of a decision on the reports of these brokers, None if it succeeds."""
        known, now_s = self.context.cluster_state.loads.reports, self.context.clock.monotonic_s()
        reports = [known[broker] for broker in brokers if broker in known]
        try:
            return await self.context.computing.compute(_raised, trial, reports, now_s)
        except TimeoutError as error:
            return error


def _raised(trial: Trial, reports: Sequence[KnownLoads], now_s: float) -> Exception | None:
    tracker = LoadTracker(weights=trial.planner.weights)
    try:
        for known in reports:
            tracker.report(known.report, known.seen_at_s)
        tracker.sample()
        view = tracker.view(now_s, in_flight=trial.assigned, policies=trial.policies)
        # All brokers are new to this tracker, which would otherwise prevent shedding.
        view = replace(view, membership_changed_s=-math.inf, departures_s=())
        plan = trial.planner.round(view, trial.memory, np.random.default_rng(0), draining=False)
        encode_standby(Standby(plan.memory, tracker.averages(), tracker.running()))
    except Exception as error:  # noqa: BLE001 - any error is the result of the trial
        return error
    return None
