"""The input of a replay from history, in the order in which the leader received it."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import DEFAULT_RATES, LONG_SAMPLES, SHORT_SAMPLES, add_samples
from loadmanager.core.columns import BundleColumns, Indices, Mask, OwnedRows
from loadmanager.core.history.schema import SHORT_AND_LONG, TRAFFIC
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.scores import FloatArray

LISTED: Final = (
    *(one.name for one in TRAFFIC),
    "topics",
    "producers",
    "consumers",
    "cache_bytes",
)
"""The columns of the numbers of a ``report``."""

AVERAGED: Final = (
    *(one.name for one in SHORT_AND_LONG),
    "short_samples",
    "long_samples",
    "topics",
)
"""The columns of the numbers of ``bundles``."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_NO_NUMBERS: Final[FloatArray] = np.zeros((0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """The part of a line of history that a replay needs.

    ``kind`` is report, tick, bundles, round, move, task or cut. ``body`` are the fields of the
    line, except those of bundles: ``names``, and ``numbers`` (bundles, columns) in the columns
    `LISTED` or `AVERAGED`. A report precedes the first event that names it, and the ``bundles``
    of a base round are one event in the place of the first of their lines.
    """

    kind: str
    body: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    names: tuple[str, ...] = ()
    numbers: FloatArray = field(default_factory=lambda: _NO_NUMBERS)


_SHORT, _LONG, _COUNTS, _TOPICS = slice(0, 4), slice(4, 8), slice(8, 10), 10

_UNMEASURED: Final = np.array([*DEFAULT_RATES.row(), *DEFAULT_RATES.row(), 0.0, 0.0, 0.0])
"""The averages of a bundle without a sample: defaults, as in the leader's load tracker."""


class Brokers:
    """The brokers so far, numbered from 0."""

    def __init__(self) -> None:
        self.names: list[BrokerId] = []
        self.numbers: dict[BrokerId, int] = {}

    def numbers_of(self, names: Iterable[str]) -> Indices:
        """Return the numbers of brokers; unknown ones get new numbers."""
        return np.array([self.number(name) for name in names], dtype=np.intp)

    def number(self, name: str) -> int:
        """Return the number of a broker; an unknown one gets a new number."""
        broker = BrokerId(name)
        found = self.numbers.get(broker)
        if found is None:
            found = self.numbers[broker] = len(self.names)
            self.names.append(broker)
        return found


class Bundles:
    """The bundles so far, each with a row that never changes."""

    def __init__(self) -> None:
        self.names: list[BundleId] = []
        self.index: dict[BundleId, int] = {}
        self.namespaces: dict[Namespace, list[int]] = {}
        self._system: list[bool] = []
        self._by_name: Indices = np.zeros(0, dtype=np.intp)

    def __len__(self) -> int:
        return len(self.names)

    def rows(self, names: Iterable[str]) -> Indices:
        """Return the rows of bundles; unknown ones get new rows."""
        return np.array([self.row(name) for name in names], dtype=np.intp)

    def row(self, name: str) -> int:
        """Return the row of a bundle; an unknown one gets a new row."""
        bundle = BundleId(name)
        row = self.index.get(bundle)
        if row is None:
            row = self.index[bundle] = len(self.names)
            self.names.append(bundle)
            self.namespaces.setdefault(namespace_of(bundle), []).append(row)
            self._system.append(belongs_to_a_broker(bundle))
        return row

    def by_name(self) -> Indices:
        if len(self._by_name) != len(self.names):
            order = sorted(range(len(self.names)), key=self.names.__getitem__)
            self._by_name = np.array(order, dtype=np.intp)
        return self._by_name

    def columns(self, averages: "Averages", connections: FloatArray) -> BundleColumns:
        count = len(self.names)
        table = averages.table(count)
        return BundleColumns(
            names=self.names,
            index=self.index,
            short=table[:, _SHORT],
            long=table[:, _LONG],
            known=table[:, _COUNTS][:, 0] > 0,
            system=np.array(self._system, dtype=np.bool_),
            topics=table[:, _TOPICS].astype(np.int64),
            connections=connections.astype(np.int64),
            namespaces=self.namespaces,
        )


class Averages:
    """The leader's averages of all bundles at one moment; immutable."""

    def __init__(self, table: FloatArray) -> None:
        self._table = table

    @classmethod
    def none(cls) -> "Averages":
        return cls(np.zeros((0, len(_UNMEASURED))))

    @classmethod
    def recorded(cls, count: int, rows: Indices, numbers: FloatArray) -> "Averages":
        """Return the averages of a base round for ``rows``; all others have no sample."""
        table = np.tile(_UNMEASURED, (count, 1))
        table[rows] = numbers
        return cls(table)

    def table(self, count: int) -> FloatArray:
        """Return (``count``, 11): short, long, samples in both, topics."""
        missing = count - len(self._table)
        if missing <= 0:
            return self._table
        return np.concatenate([self._table, np.tile(_UNMEASURED, (missing, 1))])

    def sampled(self, rates: FloatArray, topics: FloatArray, listed: Mask) -> "Averages":
        """Return the averages with one more sample of every ``listed`` bundle.

        ``rates`` is (bundles, 4).
        """
        former = self.table(len(rates))
        table = former.copy()
        for columns, counts, most in ((_SHORT, 8, SHORT_SAMPLES), (_LONG, 9, LONG_SAMPLES)):
            samples = former[:, counts].astype(np.int64)
            table[:, columns], table[:, counts] = add_samples(
                former[:, columns], samples, rates, most
            )
        table[:, _TOPICS] = topics
        table[~listed] = former[~listed]
        return Averages(table)


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
