"""A leader with ThresholdShedder in plain Python, loop by loop: the reference of the bench.

It reads the same reports and shares no code with the product, so that equal decisions
mean something.
"""

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from loadmanager.core.load import BundleStats, LoadReport

EXTRA: Final = 0.05
SHORT_SAMPLES: Final = 10
LONG_SAMPLES: Final = 1000
SYSTEM: Final = re.compile(r"(pulsar|sla-monitor)/[^:/]+:\d+/")


@dataclass(slots=True)
class Average:
    """A running average of messages and bytes per second, in and out."""

    max_samples: int
    samples: int = 0
    rates: list[float] = field(default_factory=lambda: [0.0] * 4)

    def add(self, stats: BundleStats) -> None:
        self.samples = min(self.samples + 1, self.max_samples)
        new = [stats.msgs_in_per_s, stats.msgs_out_per_s]
        new += [stats.bytes_in_per_s, stats.bytes_out_per_s]
        for place in range(4):
            old = self.rates[place]
            self.rates[place] = ((self.samples - 1) * old + new[place]) / self.samples


class PlainLeader:
    """Keeps reports, averages and each broker's history; picks what is to be unloaded."""

    def __init__(self, *, threshold: float, history: float) -> None:
        self.threshold = threshold
        self.history = history
        self.reports: dict[str, LoadReport] = {}
        self.bytes_per_s: dict[str, float] = {}
        self.short: dict[str, Average] = {}
        self.long: dict[str, Average] = {}
        self.usage: dict[str, float] = {}
        self.recently_unloaded: frozenset[str] = frozenset()

    def take(self, report: LoadReport) -> None:
        """Take in a new or changed report."""
        self.reports[report.broker] = report
        self.bytes_per_s[report.broker] = report.totals.bytes_per_s

    def sample(self) -> None:
        for report in self.reports.values():
            for bundle, stats in report.bundles.items():
                if bundle not in self.short:
                    self.short[bundle] = Average(SHORT_SAMPLES)
                    self.long[bundle] = Average(LONG_SAMPLES)
                self.short[bundle].add(stats)
                self.long[bundle].add(stats)

    def select(self) -> dict[str, list[str]]:
        """Return the bundles to unload from each broker, in the order of selection."""
        mean = self._fold()
        selected: dict[str, list[str]] = {}
        for name, report in self.reports.items():
            usage = self.usage[name]
            if mean == 0 or usage < mean + self.threshold or len(report.bundles) <= 1:
                continue
            need = self.bytes_per_s[name] * (usage - mean - self.threshold + EXTRA)
            picked = self._largest_until(need, report.bundles)
            if picked:
                selected[name] = picked
        return selected

    def _fold(self) -> float:
        for name, report in self.reports.items():
            now = _usage(report)
            past = self.usage.get(name)
            mixed = now if past is None else past * self.history + (1.0 - self.history) * now
            self.usage[name] = mixed
        return sum(self.usage.values()) / len(self.usage) if self.usage else 0.0

    def _largest_until(self, need: float, bundles: Iterable[str]) -> list[str]:
        known = []
        for bundle in bundles:
            average = self.short.get(bundle)
            if average and not SYSTEM.match(bundle) and bundle not in self.recently_unloaded:
                known.append((average.rates[2] + average.rates[3], bundle))
        known.sort(key=lambda pair: -pair[0])
        picked: list[str] = []
        taken = 0.0
        for size, bundle in known:
            if picked and taken >= need:
                break
            picked.append(bundle)
            taken += size
        return picked


def _usage(report: LoadReport) -> float:
    """Return the largest usage as a fraction; percentages have 32 bits, as in Java.

    The weights are the default ones, with which memory of either kind does not count.
    """
    percents = [0.0]
    for resource in (report.cpu, report.bandwidth_in, report.bandwidth_out):
        if resource is not None and resource.limit > 0:
            quotient = _float32(_float32(resource.usage) / _float32(resource.limit))
            percents.append(_float32(quotient * 100.0))
    return max(percents) / 100.0


def _float32(value: float) -> float:
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded
