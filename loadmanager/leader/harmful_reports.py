"""Leaves out the brokers whose reports may have made a round fail.

Figures are bounded where they are read, so no report should make a decision raise an exception.
If one does, it would stop balancing for the whole cluster, under this leader and the next. The
failed round is therefore repeated without the brokers whose reports are new since the last round
that succeeded.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from loadmanager.common.context import Context
from loadmanager.core.ids import BrokerId

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _LeftOut:
    mzxid: int
    why: str


@dataclass(slots=True)
class HarmfulReports:
    """The brokers left out of decisions in one term, with reasons.

    ``_used`` and ``_sound`` are the versions of the reports in the round under way, and in the last
    one that succeeded.
    """

    context: Context
    _left_out: dict[BrokerId, _LeftOut] = field(default_factory=dict)
    _used: Mapping[BrokerId, int] = field(default_factory=dict)
    _sound: Mapping[BrokerId, int] = field(default_factory=dict)

    @property
    def brokers(self) -> Mapping[BrokerId, str]:
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

    def round_begins(self) -> None:
        left_out = self.current()
        known = self.context.cluster_state.loads.reports
        self._used = {name: one.mzxid for name, one in known.items() if name not in left_out}

    def round_succeeded(self) -> None:
        self._sound = self._used

    def leave_out_new(self, error: Exception) -> bool:
        """Leave out the brokers with new reports after a failed round; return whether any was.

        If all reports are new, or none is, no report is known to be at fault, and none is left out.
        """
        new = [name for name, mzxid in self._used.items() if self._sound.get(name) != mzxid]
        why = f"{type(error).__name__}: {error}"
        if not new or len(new) == len(self._used):
            log.error("broker.report.cause_not_found", brokers=len(self._used), error=why)
            return False
        for broker in new:
            self._left_out[broker] = _LeftOut(self._used[broker], why)
            log.error("broker.report.left_out", broker=broker, error=why)
        self._show()
        return True

    def end(self) -> None:
        self._left_out.clear()
        self._show()

    def _show(self) -> None:
        self.context.metrics.brokers_left_out.set(len(self._left_out))
