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
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.filters import Counts, fewest, fewest_by_domain
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.max_over_mean import NEAR_ENOUGH, over_mean
from loadmanager.core.plan import Cause, Move, Steps
from loadmanager.core.policies import governed, open_to

# Count by which a broker may exceed another, as a fraction of the mean; one more is allowed.
MOST_MORE: Final = 0.1
APART: Final = "to keep namespaces of groups apart"
SPREADING: Final = "to spread bundles without traffic"
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
    """The moves that are due in a view: ``urgent`` ones of drains and policies, and by count.

    Groups are kept apart and bundles spread until ``steps`` are used up.
    """

    def __init__(self, view: ClusterView, duties: Duties, steps: Steps) -> None:
        self._view, self._duties, self._steps = view, duties, steps
        self._moves, self._policies, self._brokers = list[Move](), view.policies, view.brokers.names
        self._bundles, self._owner = view.bundles.names, view.owned.listed_by.copy()
        self._listed = listed = np.flatnonzero(self._owner >= 0)
        rates = view.bundles.short[listed].reshape(-1, 2, 2).sum(axis=2)
        sizes = over_mean(rates, max(len(self._brokers), 1))
        self._sizes = np.zeros((len(self._owner), sizes.shape[1]))
        self._sizes[listed] = sizes
        self._loads = np.zeros((len(self._brokers), sizes.shape[1]))
        np.add.at(self._loads, self._owner[listed], sizes)
        self._movable = self._owner >= 0
        held = (view.bundles.row(one) for one in duties.held)
        self._movable[[row for row in held if row is not None]] = False
        policies, self._policy = governed(view.policies, view.bundles.namespaces, len(self._owner))
        self._allowed: Mask = np.array(
            [open_to(view.policies, one, self._brokers, duties.registered) for one in policies]
        )
        takes = np.array([one not in duties.cordoned for one in self._brokers], dtype=bool)
        self._drains = np.array([one in duties.draining for one in self._brokers], dtype=bool)
        self._open = self._allowed & takes
        self._counts = np.bincount(self._owner[listed], minlength=len(self._brokers))
        self._empty_draining()
        self._obey_isolation()
        self._keep_groups_apart()
        self.urgent = tuple(self._moves)
        self._spread_idle()
        self.counted = tuple(self._moves[len(self.urgent) :])

    @property
    def worth_their_price(self) -> set[BundleId]:
        """The late bundles of at least `LEAST_NEEDED` on brokers above `NEAR_ENOUGH`."""
        rows = self._listed
        full = self._loads.max(axis=1, initial=0.0)[self._owner[rows]] > NEAR_ENOUGH
        worth = full & (self._sizes[rows].max(axis=1, initial=0.0) >= LEAST_NEEDED)
        return {self._bundles[row] for row in rows[worth].tolist()}.intersection(self._duties.late)

    def _empty_draining(self) -> None:
        for row in self._leaving(lambda rows: ~self._drains[self._owner[rows]], sign=1.0):
            if len(self._moves) == self._duties.most or self._steps.left <= 0:
                return
            source, target = int(self._owner[row]), self._least_loaded(row)
            if group := self._policies.group_of(namespace := namespace_of(self._bundles[row])):
                where = {one: self._where(one) for one in group}
                served = [broker for here in where.values() for broker in here]
                counts = np.bincount(served, minlength=len(self._brokers))
                bundles = sum(len(self._view.bundles.namespaces.get(one, ())) for one in group)
                self._steps.spend(source, 10 * len(group) + 3 * bundles, APART)
                target = self._apart(where[namespace], source, counts)
            self._move(row, target, Cause.DRAINING)

    def _obey_isolation(self) -> None:
        def stays(rows: Indices) -> Mask:
            return self._allowed[self._policy[rows], self._owner[rows]]

        for row in self._leaving(stays, sign=-1.0)[: self._duties.most - len(self._moves)]:
            self._move(row, self._least_loaded(row), Cause.ISOLATION)

    def _leaving(self, stays: Callable[[Indices], Mask], *, sign: float) -> list[int]:
        """Return movable rows that do not stay and may go somewhere, by ``sign`` times their size.

        Bundles that are to move late are last.
        """
        rows, late = np.flatnonzero(self._movable), self._duties.late
        goes = np.asarray(self._open.any(axis=1))[self._policy[rows]]
        found = rows[goes & ~stays(rows)].tolist()
        largest = self._sizes.max(axis=1, initial=0.0)
        return sorted(found, key=lambda row: (self._bundles[row] in late, sign * largest[row], row))

    def _least_loaded(self, row: int) -> int:
        brokers = np.flatnonzero(self._open[self._policy[row]])
        loads = self._loads[brokers].max(axis=1, initial=0.0)
        return int(brokers[np.lexsort((self._counts[brokers], loads))[0]])

    def _keep_groups_apart(self) -> None:
        for _, group in sorted(self._policies.groups.items()):
            where = [self._where(one) for one in sorted(group)]
            served = list(chain.from_iterable(where))
            if len(set(served)) == len(served) and not self._policies.domains:
                continue  # No broker serves two.
            counts = np.bincount(np.array(served, np.intp), minlength=len(self._brokers))
            for here, source in [(them, one) for them in where for one in sorted(them)]:
                left = self._duties.most - len(self._moves)
                if left == 0 or self._steps.left <= 0:
                    return
                target = source
                if self._movable[here[source]].all():
                    target = self._apart(here, source, counts)
                if target != source:
                    for row in here[source][:left]:
                        self._move(row, target, Cause.ANTI_AFFINITY)
                    counts[source] -= 1
                    counts[target] += target not in here
                    here[target] = [*here.get(target, ()), *here.pop(source)]

    def _where(self, namespace: Namespace) -> dict[int, list[int]]:
        """Return the rows of a namespace's bundles by the row of their broker."""
        here, owner = dict[int, list[int]](), self._owner
        rows = self._view.bundles.namespaces.get(namespace, ())
        for row in [one for one in rows if one < len(owner) and owner[one] >= 0]:
            here.setdefault(int(owner[row]), []).append(row)
        return here

    def _apart(self, here: Mapping[int, list[int]], source: int, counts: Counts) -> int:
        """Return the broker with the fewest others of a group, ``source`` if it is as good.

        ``counts`` are the namespaces of the group on each broker, with the one that is ``here``.
        """
        domains, count = self._policies.domains, len(counts)
        if counts[source] == 1 and not (domains or self._drains[source]):
            return source  # Nowhere are fewer others than none.
        self._steps.spend(source, 200 + (4 * count if domains else count // 8), APART)
        policy = self._policy[here[source][0]]
        best, counts = self._open[policy].copy(), counts.copy()
        # Where it is, it may stay.
        best[source] = self._allowed[policy, source] and not self._drains[source]
        counts[list(here)] -= 1
        if domains:
            best = best & fewest_by_domain(self._view, counts, best)
        best = best & fewest(counts, best)
        if best[source] or not best.any():
            return source
        fullness = self._loads.max(axis=1, initial=0.0)
        return min(np.flatnonzero(best).tolist(), key=lambda one: (one not in here, fullness[one]))

    def _spread_idle(self) -> None:
        idle, late, apart = self._duties.idle, self._duties.late, self._duties.apart
        kinds: defaultdict[Namespace, list[int]] = defaultdict(list)
        for row in self._listed.tolist() if idle else ():
            if self._bundles[row] in idle:
                namespace = namespace_of(self._bundles[row])
                kinds[namespace if namespace in apart else Namespace("")].append(row)
        for _, rows in sorted(kinds.items()):
            counts = np.bincount(self._owner[rows], minlength=len(self._brokers))
            here: defaultdict[int, list[int]] = defaultdict(list)
            for row in rows:
                if self._movable[row] and self._bundles[row] not in late:
                    here[int(self._owner[row])].append(row)
            more = max(1.0, MOST_MORE * float(counts.mean()))
            gives = np.isin(np.arange(len(counts)), list(here))
            while len(self._moves) < self._duties.most and self._steps.left > 0 and gives.any():
                source = int(np.where(gives, counts, -1).argmax())
                if counts[source] - counts.min() <= more:
                    break
                gives[source] = self._moved_one(here[source], source, counts, more)

    def _moved_one(self, rows: list[int], source: int, counts: Counts, more: float) -> bool:
        """Move the last of these idle bundles that some broker may take, and drop those after."""
        stuck: set[int] = set()
        while rows:
            row = rows.pop()
            policy = int(self._policy[row])
            if policy in stuck:
                continue
            self._steps.spend(source, 200 + len(counts) // 8, SPREADING)
            brokers = np.flatnonzero(self._open[policy])
            target = int(brokers[counts[brokers].argmin()]) if len(brokers) else source
            if counts[source] - counts[target] > more:
                self._move(row, target, Cause.COUNT)
                counts[source] -= 1
                counts[target] += 1
                return True
            stuck.add(policy)
        return False

    def _move(self, row: int, target: int, cause: Cause) -> None:
        source, self._owner[row] = int(self._owner[row]), target
        self._counts[source] -= 1
        self._counts[target] += 1
        self._loads[source] -= self._sizes[row]
        self._loads[target] += self._sizes[row]
        self._movable[row] = False
        brokers = self._brokers
        self._moves.append(Move(self._bundles[row], brokers[source], brokers[target], cause))
