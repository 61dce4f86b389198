"""The latest report of each broker at a moment, and the bundles in it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from loadmanager.core.columns import Indices, Mask, OwnedRows
from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.replay.events import LISTED, Event
from loadmanager.pipeline.replay.numbering import Bundles

TOPICS: Final = 4
CONNECTIONS: Final = 5
"""Columns of rates after the four of messages and bytes."""

_PRODUCERS, _CONSUMERS, _CACHE = 5, 6, 7

_KEPT: Final = 4
"""Reports kept of a broker: a round may be recorded when newer reports count already."""


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """A report: the rows of its bundles in order of names, and their numbers (`LISTED`)."""

    at_ms: int
    rows: Indices
    numbers: FloatArray

    @property
    def connections(self) -> int:
        return int(self.numbers[:, _PRODUCERS : _CONSUMERS + 1].sum())


class LatestReports:
    """The reports that count now, and the figures of bundles in them.

    ``rates`` (bundles, 6) are messages and bytes in and out, topics and connections of the report
    that was processed last of those that list the bundle.
    """

    def __init__(self, bundles: Bundles) -> None:
        self._bundles = bundles
        self._offered: dict[str, dict[int, Report]] = {}
        self._reports: dict[str, Report] = {}
        self.rates: FloatArray = np.zeros((0, 6))
        self.cache_bytes: FloatArray = np.zeros(0)

    def offer(self, event: Event) -> None:
        """Store a report until it counts, and for some time after."""
        order = sorted(range(len(event.names)), key=event.names.__getitem__)
        rows = self._bundles.rows(event.names[at] for at in order)
        numbers = event.numbers[order] if order else np.zeros((0, len(LISTED)))
        broker, at_ms = event.body["broker"], event.body["reported_at_ms"]
        offered = self._offered.setdefault(broker, {})
        offered[at_ms] = Report(at_ms, rows, numbers)
        if len(offered) > _KEPT:
            del offered[next(iter(offered))]

    def take(self, broker: str, at_ms: int) -> None:
        """Let a stored report replace the former report of the broker."""
        report = self._offered.get(broker, {}).get(at_ms)
        latest = self._reports.get(broker)
        if report is None or latest is report:
            return
        self._reports[broker] = report
        self.grow()
        numbers = report.numbers
        self.rates[report.rows, :5] = numbers[:, :5]
        self.rates[report.rows, CONNECTIONS] = numbers[:, _PRODUCERS] + numbers[:, _CONSUMERS]
        self.cache_bytes[report.rows] = numbers[:, _CACHE]

    def forget(self, broker: str) -> None:
        self._reports.pop(broker, None)

    def named(self, content: Mapping[str, Any]) -> dict[str, Report] | str:
        """Return the reports that a round names, or a text about one that is missing.

        They count from now on, unless newer ones do already: a round is recorded when its orders
        are written, and the leader may have processed reports since its decision.
        """
        found: dict[str, Report] = {}
        for broker, at_ms in zip(content["broker"], content["reported_at_ms"], strict=True):
            report = self._offered.get(broker, {}).get(at_ms)
            if report is None:
                return f"{broker} reported at {at_ms}"
            found[broker] = report
            latest = self._reports.get(broker)
            if latest is None or latest.at_ms < at_ms:
                self.take(broker, at_ms)
        return found

    def only(self, brokers: Collection[str]) -> None:
        for gone in self._reports.keys() - set(brokers):
            self.forget(gone)

    def grow(self) -> None:
        missing = len(self._bundles) - len(self.rates)
        if missing > 0:
            self.rates = np.concatenate([self.rates, np.zeros((missing, 6))])
            self.cache_bytes = np.concatenate([self.cache_bytes, np.zeros(missing)])

    @property
    def listed(self) -> Mask:
        self.grow()
        found = np.zeros(len(self.rates), dtype=np.bool_)
        for report in self._reports.values():
            found[report.rows] = True
        return found


def owned_rows(reports: Sequence[Report], bundle_count: int) -> OwnedRows:
    """Return the bundles of each report, of one broker each."""
    starts = np.zeros(len(reports) + 1, dtype=np.intp)
    np.cumsum([len(one.rows) for one in reports], out=starts[1:])
    none = np.zeros(0, dtype=np.intp)
    return OwnedRows(starts, np.concatenate([none, *(one.rows for one in reports)]), bundle_count)


def owners(reports: Sequence[Report], bundle_count: int) -> Indices:
    """Return the position of the newest report that lists each bundle; -1 for none."""
    owner = np.full(bundle_count, -1, dtype=np.intp)
    for position in sorted(range(len(reports)), key=lambda at: reports[at].at_ms):
        owner[reports[position].rows] = position
    return owner
