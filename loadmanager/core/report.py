"""Decides when an agent publishes its load report: as rarely as possible.

A report costs one write, and one read by every watcher. It is written when its content has
changed, and at least every ``max_interval_s``, so that its age distinguishes a failed agent from
an idle one. A change counts only if it is also large in absolute terms: an increase from 0.1 to
5 messages per second is fiftyfold but irrelevant, and an idle cluster that reported such changes
would never stop writing.
"""

import statistics
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

from loadmanager.core.ids import BundleId
from loadmanager.core.load import HostUsage, LoadReport, ResourceUsage, registration_of
from loadmanager.core.rates import six_digits
from loadmanager.core.scores import RESOURCES
from loadmanager.core.settings import Settings, setting


class Due(StrEnum):
    FIRST = "first"
    FORCED = "forced"
    REGISTRATION = "registration"
    BUNDLES = "bundles"
    USAGE = "usage"
    MSG_RATE = "msg_rate"
    THROUGHPUT = "throughput"
    AGE = "age"


@dataclass(frozen=True, slots=True)
class Published:
    report: LoadReport
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportRules(Settings):
    min_interval_s: float = setting(
        "Shortest time between two reports; forced reports are written at once.",
        "seconds",
        default=5.0,
        within=(0.0, 3600.0),
    )
    max_interval_s: float = setting(
        "An unchanged report is written again after this time, as a heartbeat.",
        "seconds",
        default=60.0,
        within=(1.0, 86400.0),
    )
    change_fraction: float = setting(
        "Change of message rate or throughput, relative to the last report, that is reported.",
        "fraction",
        "loadBalancerReportUpdateThresholdPercentage",
        default=0.10,
        within=(0.0, 100.0),
        pulsar_divisor=100.0,
    )
    change_points: float = setting(
        "Change of any resource's usage, in points of capacity, that is reported.",
        "fraction",
        default=0.10,
        within=(0.0, 1.0),
    )
    floor_msgs_per_s: float = setting(
        "A message rate that changes by less than this has not changed.",
        "messages/s",
        default=100.0,
        within=(0.0, 1e9),
    )
    floor_bytes_per_s: float = setting(
        "A throughput that changes by less than this has not changed.",
        "bytes/s",
        default=100_000.0,
        within=(0.0, 1e12),
    )
    jitter_fraction: float = setting(
        "Largest random reduction of max_interval_s, so that agents that were started together "
        "do not write together.",
        "fraction",
        default=0.2,
        within=(0.0, 0.9),
    )


def due(
    rules: ReportRules,
    last: Published | None,
    current: LoadReport,
    now_s: float,
    jitter: float,
    *,
    forced: bool = False,
) -> Due | None:
    """Return why ``current`` is to be published now, None if it is not.

    ``now_s`` is on the clock of ``last.at_s``; ``jitter`` is from 0 to 1, redrawn after each
    report. Changes of the registration (addresses, draining) are published at once, all others
    after ``min_interval_s`` at the earliest.
    """
    if last is None:
        return Due.FIRST
    if forced:
        return Due.FORCED
    if registration_of(last.report) != registration_of(current):
        return Due.REGISTRATION
    age_s = now_s - last.at_s
    if age_s < rules.min_interval_s:
        return None
    change = _change(rules, last.report, current)
    if change is None and age_s >= rules.max_interval_s * (1.0 - rules.jitter_fraction * jitter):
        return Due.AGE
    return change


def _change(rules: ReportRules, last: LoadReport, current: LoadReport) -> Due | None:
    if last.bundles.keys() != current.bundles.keys():
        return Due.BUNDLES
    for name in RESOURCES:
        before, used = getattr(last, name), getattr(current, name)
        # The first report has no rates yet: otherwise CPU and network would stay unknown until
        # ``max_interval_s``.
        if (before is None) != (used is None):
            return Due.USAGE
        if abs(_fraction(used) - _fraction(before)) > rules.change_points:
            return Due.USAGE
    then, now = last.totals, current.totals
    if _moved(then.msgs_per_s, now.msgs_per_s, rules.change_fraction, rules.floor_msgs_per_s):
        return Due.MSG_RATE
    if _moved(then.bytes_per_s, now.bytes_per_s, rules.change_fraction, rules.floor_bytes_per_s):
        return Due.THROUGHPUT
    return None


def _fraction(used: ResourceUsage | None) -> float:
    return (used.fraction or 0.0) if used is not None else 0.0


def _moved(last: float, current: float, fraction: float, floor: float) -> bool:
    change = abs(current - last)
    return change > fraction * last and change >= floor


MOST_SAMPLES: Final = 12
"""Number of samples kept: one minute at the default interval of five seconds."""

_RESOURCES: Final = ("cpu", "memory", "bandwidth_in", "bandwidth_out")
_NO_BUNDLES: Final[AbstractSet[BundleId]] = frozenset()


@dataclass(frozen=True, slots=True)
class UsageSamples:
    """The last samples of a broker's host with the same ``bundles``, oldest first.

    They are cleared when the broker gains or loses a bundle: the resulting change of usage is
    not variation.
    """

    taken: tuple[HostUsage, ...] = ()
    bundles: AbstractSet[BundleId] = _NO_BUNDLES

    def after(self, usage: HostUsage, bundles: AbstractSet[BundleId]) -> "UsageSamples":
        former = self.taken if bundles == self.bundles else ()
        return UsageSamples((*former, usage)[-MOST_SAMPLES:], bundles)

    def last(self) -> HostUsage:
        varied: dict[str, Any] = {
            name: _varied([getattr(one, name) for one in self.taken]) for name in _RESOURCES
        }
        return replace(self.taken[-1], **varied)


def _varied(taken: list[ResourceUsage | None]) -> ResourceUsage | None:
    last = taken[-1]
    if last is None:
        return None
    usages = [one.usage for one in taken if one is not None and one.limit == last.limit]
    if len(usages) == 1:
        return last
    mean = statistics.fmean(usages)
    variance = statistics.variance(usages)
    return replace(last, mean=six_digits(mean), variance=six_digits(variance))
