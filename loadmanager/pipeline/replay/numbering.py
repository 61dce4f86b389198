"""Numbers of the bundles and brokers of a replay, which never change, and averages by them."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from loadmanager.core.averages import DEFAULT_RATES, LONG_SAMPLES, SHORT_SAMPLES, add_samples
from loadmanager.core.columns import BundleColumns, Indices, Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.scores import FloatArray

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
