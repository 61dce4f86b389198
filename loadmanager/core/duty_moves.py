"""Moves that are due whatever the traffic: those that policies require, and spreading by count.

A bundle on a broker that its isolation policy forbids goes to the least loaded one that the policy
allows. Namespaces of an anti-affinity group leave brokers, and before that failure domains, that
serve others of the group, for those that serve the fewest. A namespace leaves a broker with all of
its bundles there, so each such step lowers the number of pairs of the group's namespaces on a
broker or in a domain, and the steps come to an end.

Bundles without traffic, such as those of transaction coordinators, are no load by which a
strategy could spread them: they are spread by their count.

A draining broker is emptied before anything else, the least loaded bundle first.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Mask
from loadmanager.core.filters import fewest, fewest_by_domain, namespaces_on
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.max_over_mean import NEAR_ENOUGH, over_mean
from loadmanager.core.plan import Cause, Move
from loadmanager.core.policies import open_to

# Count by which a broker may exceed another, as a fraction of the mean; one more is allowed.
MOST_MORE: Final = 0.1
LEAST_NEEDED: Final = 0.02
"""A bundle that moves last does so for traffic of at least this part of a broker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Duties:
    """What is moved whatever the traffic, in a round of at most ``most`` moves.

    The brokers that are ``registered`` may be without a report. ``cordoned`` brokers take nothing,
    and those of them that are ``draining`` are emptied. Bundles of ``held`` stay, of ``idle`` have
    no traffic, of ``late`` move when nothing else does, and of an ``apart`` namespace are counted
    by themselves.
    """

    registered: tuple[BrokerId, ...]
    most: int = 1_000_000
    held: Collection[BundleId] = ()
    idle: Collection[BundleId] = ()
    late: Collection[BundleId] = ()
    apart: Collection[Namespace] = ()
    cordoned: Collection[BrokerId] = ()
    draining: Collection[BrokerId] = ()


class DutyMoves:
    """The moves that are due in a view: ``urgent`` ones of drains and policies, and by count."""

    def __init__(self, view: ClusterView, duties: Duties) -> None:
        self._view, self._duties, self._moves = view, duties, list[Move]()
        self._brokers, policies = view.brokers.names, view.policies
        listed = np.flatnonzero(view.owned.listed_by >= 0)
        self._bundles = [view.bundles.names[row] for row in listed.tolist()]
        self._owner = view.owned.listed_by[listed].copy()
        rates = view.bundles.short[listed].reshape(-1, 2, 2).sum(axis=2)
        self._sizes = over_mean(rates, max(len(self._brokers), 1))
        self._loads = np.zeros((len(self._brokers), self._sizes.shape[1]))
        np.add.at(self._loads, self._owner, self._sizes)
        self._movable = np.array([one not in duties.held for one in self._bundles], dtype=bool)
        self._namespaces = [namespace_of(one) for one in self._bundles]
        self._rows: defaultdict[Namespace, list[int]] = defaultdict(list)
        for row, namespace in enumerate(self._namespaces):
            self._rows[namespace].append(row)
        self._allowed: dict[Namespace, Mask] = {
            name: open_to(policies, policies.governing(name), self._brokers, duties.registered)
            for name in self._rows
        }
        self._takes = np.array([one not in duties.cordoned for one in self._brokers], dtype=bool)
        self._drains = np.array([one in duties.draining for one in self._brokers], dtype=bool)
        self._empty_draining()
        self._obey_isolation()
        self._keep_groups_apart()
        self.urgent = tuple(self._moves)
        self._spread_idle()
        self.counted = tuple(self._moves[len(self.urgent) :])

    @property
    def worth_their_price(self) -> set[BundleId]:
        """The late bundles of at least `LEAST_NEEDED` on brokers above `NEAR_ENOUGH`."""
        full = self._loads.max(axis=1, initial=0.0)[self._owner] > NEAR_ENOUGH
        worth = np.flatnonzero(full & (self._sizes.max(axis=1, initial=0.0) >= LEAST_NEEDED))
        return {self._bundles[row] for row in worth.tolist()}.intersection(self._duties.late)

    def _empty_draining(self) -> None:
        largest, late = self._sizes.max(axis=1, initial=0.0), self._duties.late
        leaving = np.flatnonzero(self._drains[self._owner] & self._movable).tolist()
        leaving.sort(key=lambda row: (self._bundles[row] in late, largest[row], row))
        for row in leaving:
            if len(self._moves) == self._duties.most:
                return
            source, namespace = int(self._owner[row]), self._namespaces[row]
            if namespace in self._view.policies.anti_affinity:
                target = self._apart(namespace, source)
            else:
                target = self._least_loaded(namespace, source)
            if target != source:
                self._move(row, target, Cause.DRAINING)

    def _obey_isolation(self) -> None:
        largest, late = self._sizes.max(axis=1, initial=0.0), self._duties.late
        forbidden = [
            row
            for row, namespace in enumerate(self._namespaces)
            if self._movable[row] and not self._allowed[namespace][self._owner[row]]
        ]
        forbidden.sort(key=lambda row: (self._bundles[row] in late, -largest[row], row))
        for row in forbidden:
            if len(self._moves) == self._duties.most:
                return
            source, namespace = int(self._owner[row]), self._namespaces[row]
            target = self._least_loaded(namespace, source)
            if target != source:
                self._move(row, target, Cause.ISOLATION)

    def _least_loaded(self, namespace: Namespace, source: int) -> int:
        """Return the broker to which a bundle goes, ``source`` if there is none."""
        brokers = np.flatnonzero(self._allowed[namespace] & self._takes)
        if not len(brokers):
            return source
        counts = np.bincount(self._owner, minlength=len(self._brokers))
        order = np.lexsort((counts[brokers], self._loads[brokers].max(axis=1, initial=0.0)))
        return int(brokers[order[0]])

    def _keep_groups_apart(self) -> None:
        for namespace in sorted(self._view.policies.anti_affinity.keys() & self._rows.keys()):
            if len(self._moves) == self._duties.most:
                return
            for source in sorted(self._brokers_of(namespace)):
                here = [row for row in self._rows[namespace] if self._owner[row] == source]
                target = self._apart(namespace, source)
                if target != source and self._movable[here].all():
                    for row in here[: self._duties.most - len(self._moves)]:
                        self._move(row, target, Cause.ANTI_AFFINITY)

    def _apart(self, namespace: Namespace, source: int) -> int:
        """Return the broker with the fewest others of a group, ``source`` if it is as good."""
        policies, takes = self._view.policies, self._takes.copy()
        takes[source] = not self._drains[source]  # Where it is, it may stay.
        best = self._allowed[namespace] & takes
        moved = {**self._view.moved, **{one.bundle: one.target for one in self._moves}}
        view, others = replace(self._view, moved=moved), policies.group_of(namespace) - {namespace}
        counts = namespaces_on(view, others, BundleId(""))
        if policies.domains:
            best = best & fewest_by_domain(view, counts, best)
        best = best & fewest(counts, best)
        if best[source] or not best.any():
            return source
        there, fullness = self._brokers_of(namespace), self._loads.max(axis=1, initial=0.0)
        return min(np.flatnonzero(best).tolist(), key=lambda one: (one not in there, fullness[one]))

    def _brokers_of(self, namespace: Namespace) -> set[int]:
        return set(self._owner[self._rows[namespace]].tolist())

    def _spread_idle(self) -> None:
        kinds: defaultdict[Namespace, list[int]] = defaultdict(list)
        for row, namespace in enumerate(self._namespaces):
            if self._bundles[row] in self._duties.idle:
                kinds[namespace if namespace in self._duties.apart else Namespace("")].append(row)
        for _, rows in sorted(kinds.items()):
            counts = np.bincount(self._owner[rows], minlength=len(self._brokers))
            here: defaultdict[int, list[int]] = defaultdict(list)
            for row in rows:
                if self._movable[row] and self._bundles[row] not in self._duties.late:
                    here[int(self._owner[row])].append(row)
            more = max(1.0, MOST_MORE * float(counts.mean()))
            while len(self._moves) < self._duties.most:
                source = max((one for one in here if here[one]), key=counts.item, default=None)
                if source is None or counts[source] - counts.min() <= more:
                    break
                row = here[source].pop()
                brokers = np.flatnonzero(self._allowed[self._namespaces[row]] & self._takes)
                target = int(brokers[counts[brokers].argmin()]) if len(brokers) else source
                if counts[source] - counts[target] > more:
                    self._move(row, target, Cause.COUNT)
                    counts[source] -= 1
                    counts[target] += 1

    def _move(self, row: int, target: int, cause: Cause) -> None:
        source, self._owner[row] = int(self._owner[row]), target
        self._loads[source] -= self._sizes[row]
        self._loads[target] += self._sizes[row]
        self._movable[row] = False
        brokers = self._brokers
        self._moves.append(Move(self._bundles[row], brokers[source], brokers[target], cause))
