"""Which bundles each broker owns, as rows in order of their names, redone only where it changed."""

from collections.abc import Sequence

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId

_FEW = 8


class ListingRows:
    """The bundle rows of every broker. Row ``i`` of the world is the bundle ``bundles[i]``."""

    def __init__(self, broker_count: int, bundles: Sequence[BundleId]) -> None:
        self._bundles = bundles
        by_name = sorted(range(len(bundles)), key=bundles.__getitem__)
        self._by_name = np.array(by_name, dtype=np.intp)
        none = np.zeros(0, dtype=np.intp)
        self._rows = [none] * broker_count
        self._names: list[tuple[BundleId, ...] | None] = [None] * broker_count
        self.owner: Indices = np.full(len(bundles), -1, dtype=np.intp)

    def follow(self, owner: Indices) -> Indices:
        """Take up who owns what now; return the rows of the brokers that this is about."""
        changed = np.flatnonzero(owner != self.owner)
        if not len(changed):
            return changed
        brokers = np.unique(np.concatenate([self.owner[changed], owner[changed]]))
        brokers = brokers[brokers >= 0]
        self.owner = owner.copy()
        owner_by_name = owner[self._by_name]
        if len(brokers) <= _FEW:
            for broker in brokers.tolist():
                self._put(broker, self._by_name[owner_by_name == broker])
            return brokers
        order = np.argsort(owner_by_name, kind="stable")
        sorted_owner = owner_by_name[order]
        begins = np.searchsorted(sorted_owner, brokers, side="left").tolist()
        ends = np.searchsorted(sorted_owner, brokers, side="right").tolist()
        rows = self._by_name[order]
        for broker, begin, end in zip(brokers.tolist(), begins, ends, strict=True):
            self._put(broker, rows[begin:end])
        return brokers

    def _put(self, broker: int, rows: Indices) -> None:
        self._rows[broker] = rows
        self._names[broker] = None

    def rows(self, broker: int) -> Indices:
        """Return what one broker owns, by name."""
        return self._rows[broker]

    def names(self, broker: int) -> tuple[BundleId, ...]:
        """Return the names of what one broker owns, sorted."""
        names = self._names[broker]
        if names is None:
            names = tuple(self._bundles[row] for row in self._rows[broker].tolist())
            self._names[broker] = names
        return names
