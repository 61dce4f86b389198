"""Moves that are due whatever the traffic: those that policies require, and spreading by count.

A bundle on a broker that its isolation policy forbids goes to the least loaded one that the policy
allows. Namespaces of an anti-affinity group leave brokers, and before that failure domains, that
serve others of the group, for those that serve the fewest. A namespace leaves a broker with all of
its bundles there, so each such step lowers the number of pairs of the group's namespaces on a
broker or in a domain, and the steps come to an end.

Bundles without traffic, such as those of transaction coordinators, are no load by which a
strategy could spread them: they are spread by their count.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from loadmanager.core.columns import Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.max_over_mean import Floats, Places
from loadmanager.core.plan import Cause
from loadmanager.core.policies import DEFAULT_DOMAIN, Policies, open_to

# Count by which a broker may exceed another, as a fraction of the mean; one more is allowed.
MOST_MORE: Final = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """K bundles on B brokers, of all that are ``registered``.

    ``owner`` is the (K,) index of each bundle's broker, ``sizes`` (K, R) its rates relative to the
    mean of a broker. Bundles of ``held`` stay, of ``idle`` have no traffic, of ``late`` move after
    others, and of an ``apart`` namespace are counted by themselves.
    """

    brokers: tuple[BrokerId, ...]
    registered: tuple[BrokerId, ...]
    bundles: tuple[BundleId, ...]
    owner: Places
    sizes: Floats
    policies: Policies
    held: Collection[BundleId] = ()
    idle: Collection[BundleId] = ()
    late: Collection[BundleId] = ()
    apart: Collection[Namespace] = ()


class DutyMove(NamedTuple):
    """One move: the indices of the bundle and of its target."""

    bundle: int
    target: int
    cause: Cause


def duty_moves(served: Served, most: int) -> tuple[DutyMove, ...]:
    """Return the moves that are due, at most ``most``, most urgent first."""
    moving = _Moving(served, most)
    moving.obey_isolation()
    moving.keep_groups_apart()
    moving.spread_idle()
    return tuple(moving.moves)


class _Moving:
    def __init__(self, served: Served, most: int) -> None:
        self.served, self.most = served, most
        self.moves: list[DutyMove] = []
        self.owner = served.owner.copy()
        self.loads = np.zeros((len(served.brokers), served.sizes.shape[1]))
        np.add.at(self.loads, self.owner, served.sizes)
        self.movable = np.array([one not in served.held for one in served.bundles], dtype=bool)
        self.namespaces = [namespace_of(one) for one in served.bundles]
        self.rows: defaultdict[Namespace, list[int]] = defaultdict(list)
        for row, namespace in enumerate(self.namespaces):
            self.rows[namespace].append(row)
        policies, brokers = served.policies, served.brokers
        self.allowed: dict[Namespace, Mask] = {
            name: open_to(policies, policies.governing(name), brokers, served.registered)
            for name in self.rows
        }

    def obey_isolation(self) -> None:
        served, largest = self.served, self.served.sizes.max(axis=1, initial=0.0)
        forbidden = [
            row
            for row, namespace in enumerate(self.namespaces)
            if self.movable[row]
            and not self.allowed[namespace][self.owner[row]]
            and self.allowed[namespace].any()
        ]
        forbidden.sort(key=lambda row: (served.bundles[row] in served.late, -largest[row], row))
        for row in forbidden[: self.most]:
            counts = np.bincount(self.owner, minlength=len(served.brokers))
            brokers = np.flatnonzero(self.allowed[self.namespaces[row]])
            order = np.lexsort((counts[brokers], self.loads[brokers].max(axis=1, initial=0.0)))
            self._move(row, int(brokers[order[0]]), Cause.ISOLATION)

    def keep_groups_apart(self) -> None:
        for namespace in sorted(self.served.policies.anti_affinity.keys() & self.rows.keys()):
            if len(self.moves) == self.most:
                return
            for source in sorted(self._brokers_of(namespace)):
                here = [row for row in self.rows[namespace] if self.owner[row] == source]
                target = self._apart(namespace, source)
                if target != source and self.movable[here].all():
                    for row in here[: self.most - len(self.moves)]:
                        self._move(row, target, Cause.ANTI_AFFINITY)

    def _apart(self, namespace: Namespace, source: int) -> int:
        """Return the broker with the fewest others of a group, ``source`` if it is as good."""
        policies = self.served.policies
        domains = [policies.domains.get(one, DEFAULT_DOMAIN) for one in self.served.brokers]
        others, in_domain = Counter[int](), Counter[str]()
        for other in policies.group_of(namespace) - {namespace}:
            found = self._brokers_of(other)
            others.update(found)
            in_domain.update(domains[one] for one in found)

        def crowd(one: int) -> tuple[int, int]:
            return in_domain[domains[one]] if policies.domains else 0, others[one]

        there, fullness = self._brokers_of(namespace), self.loads.max(axis=1, initial=0.0)
        allowed = np.flatnonzero(self.allowed[namespace]).tolist()
        best = min(
            allowed, key=lambda one: (*crowd(one), one not in there, fullness[one]), default=source
        )
        return best if crowd(best) < crowd(source) else source

    def _brokers_of(self, namespace: Namespace) -> set[int]:
        return set(self.owner[self.rows.get(namespace, [])].tolist())

    def spread_idle(self) -> None:
        kinds: defaultdict[Namespace, list[int]] = defaultdict(list)
        for row, namespace in enumerate(self.namespaces):
            if self.served.bundles[row] in self.served.idle:
                kinds[namespace if namespace in self.served.apart else Namespace("")].append(row)
        for _, rows in sorted(kinds.items()):
            self._spread(rows)

    def _spread(self, rows: Sequence[int]) -> None:
        counts = np.bincount(self.owner[rows], minlength=len(self.served.brokers))
        here: defaultdict[int, list[int]] = defaultdict(list)
        for row in rows:
            if self.movable[row] and self.served.bundles[row] not in self.served.late:
                here[int(self.owner[row])].append(row)
        more = max(1.0, MOST_MORE * float(counts.mean()))
        while len(self.moves) < self.most:
            source = max((one for one in here if here[one]), key=counts.item, default=None)
            if source is None or counts[source] - counts.min() <= more:
                return
            row = here[source].pop()
            brokers = np.flatnonzero(self.allowed[self.namespaces[row]])
            target = int(brokers[counts[brokers].argmin()]) if len(brokers) else source
            if counts[source] - counts[target] > more:
                self._move(row, target, Cause.COUNT)
                counts[source] -= 1
                counts[target] += 1

    def _move(self, row: int, target: int, cause: Cause) -> None:
        self.loads[self.owner[row]] -= self.served.sizes[row]
        self.loads[target] += self.served.sizes[row]
        self.owner[row] = target
        self.movable[row] = False
        self.moves.append(DutyMove(row, target, cause))
