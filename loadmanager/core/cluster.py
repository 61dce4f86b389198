from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from types import MappingProxyType
from typing import Any

import numpy as np

from loadmanager.core.averages import DEFAULT_RATES
from loadmanager.core.columns import BrokerColumns, BundleColumns, Indices, Mask, OwnedRows
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.rates import Rates
from loadmanager.core.scores import FloatArray, ResourceWeights, weighted_max_usage


class Moved(Mapping[BundleId, BrokerId]):
    """An immutable mapping of bundles to their targets, created by `of` and `adding`.

    Values derived from one another share one dictionary: ten thousand successive placements would
    otherwise make ten thousand copies.
    """

    __slots__ = ("_count", "_shared")

    def __init__(self, shared: dict[BundleId, tuple[int, BrokerId]], count: int) -> None:
        self._shared = shared
        self._count = count

    @classmethod
    def of(cls, moves: Mapping[BundleId, BrokerId]) -> "Moved":
        if isinstance(moves, Moved):
            return moves
        shared = {bundle: (number, moves[bundle]) for number, bundle in enumerate(moves)}
        return cls(shared, len(shared))

    def adding(self, bundle: BundleId, target: BrokerId) -> "Moved":
        if bundle in self._shared or len(self._shared) > self._count:
            return Moved.of({**self, bundle: target})
        self._shared[bundle] = (self._count, target)
        return Moved(self._shared, self._count + 1)

    def __getitem__(self, bundle: BundleId) -> BrokerId:
        number, target = self._shared[bundle]
        if number >= self._count:
            raise KeyError(bundle)
        return target

    def get(self, key: BundleId, /, default: Any = None) -> Any:
        found = self._shared.get(key)
        return default if found is None or found[0] >= self._count else found[1]

    def __contains__(self, bundle: object) -> bool:
        found = self._shared.get(bundle)  # type: ignore[call-overload]  # any key may be asked for
        return found is not None and found[0] < self._count

    def __iter__(self) -> Iterator[BundleId]:
        return iter(list(islice(self._shared, self._count)))

    def __len__(self) -> int:
        return self._count


class UnknownBroker(LoadManagerError, KeyError):
    def __init__(self, broker: BrokerId) -> None:
        super().__init__(f"broker {broker} has no load report in this view")


@dataclass(frozen=True, slots=True)
class TopBundle:
    bundle: BundleId
    bytes_per_s: float


@dataclass(frozen=True, eq=False, kw_only=True)
class ClusterView:
    """All input of a decision at ``now_s``: reports, averages and moves under way.

    ``owned`` are the bundles that the brokers' own reports list. ``moved`` holds bundles ordered
    to another broker whose report does not list them yet, and the moves already decided in this
    round; these bundles are never offered again. ``recently_moved`` bundles are not offered
    either, until their cool-down is over. ``top_bundles`` are the heaviest bundles of each
    broker, ascending. ``membership_changed_s`` is when a broker last joined or left,
    ``departures_s`` are the times of recent departures. All times are on the leader's clock.
    """

    now_s: float
    brokers: BrokerColumns
    bundles: BundleColumns
    owned: OwnedRows
    recently_moved: frozenset[BundleId] = frozenset()
    moved: Mapping[BundleId, BrokerId] = field(default_factory=lambda: MappingProxyType({}))
    top_bundles: Mapping[BrokerId, Sequence[TopBundle]] = field(
        default_factory=lambda: MappingProxyType({})
    )
    policies: Policies = NO_POLICIES
    membership_changed_s: float = float("-inf")
    departures_s: tuple[float, ...] = ()

    def row(self, broker: BrokerId) -> int:
        """Return the row of ``broker`` in the columns. Raises `UnknownBroker`: it has no report."""
        try:
            return self.brokers.index[broker]
        except KeyError:
            raise UnknownBroker(broker) from None

    def rows(self, brokers: Collection[BrokerId]) -> Indices:
        return np.array(sorted(self.row(broker) for broker in brokers), dtype=np.intp)

    @property
    def age_s(self) -> FloatArray:
        return self.now_s - self.brokers.seen_s

    @cached_property
    def selectable(self) -> Mask:
        """Mask of the bundle rows that may be shed: measured, not a broker's own, at rest."""
        free = self.bundles.known & ~self.bundles.system
        for bundle in (*self.recently_moved, *self.moved):
            row = self.bundles.row(bundle)
            if row is not None:
                free[row] = False
        return free

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        row = self.bundles.row(bundle)
        listed = -1 if row is None else int(self.owned.listed_by[row])
        return None if listed < 0 else self.brokers.names[listed]

    def bundles_of(self, broker: BrokerId) -> tuple[BundleId, ...]:
        names = self.bundles.names
        listed = (names[row] for row in self.owned.of(self.row(broker)).tolist())
        kept = [bundle for bundle in listed if self.moved.get(bundle, broker) == broker]
        arriving = (bundle for bundle, target in self.moved.items() if target == broker)
        return tuple(dict.fromkeys([*kept, *arriving]))

    def short_rates(self, bundle: BundleId) -> FloatArray:
        """Return the short-term traffic of ``bundle``; Pulsar's assumed rates if unmeasured."""
        row = self.bundles.row(bundle)
        return np.array(DEFAULT_RATES.row()) if row is None else self.bundles.short[row]

    def long_rates(self, bundle: BundleId) -> Rates | None:
        row = self.bundles.measured_row(bundle)
        return None if row is None else Rates(*self.bundles.long[row].tolist())

    def long_msgs_per_s(self, bundle: BundleId) -> float:
        """Return the long-term message rate of ``bundle``; an assumed rate if unmeasured."""
        row = self.bundles.row(bundle)
        if row is None:
            return DEFAULT_RATES.msgs_per_s
        return float(self.bundles.long_msgs_per_s[row])

    def scores(self, weights: ResourceWeights) -> FloatArray:
        return weighted_max_usage(self.brokers.usage, self.brokers.limit, weights)

    def after(
        self,
        bundle: BundleId,
        source: BrokerId | None,
        target: BrokerId,
        usage: FloatArray,
        gained: FloatArray | None = None,
    ) -> "ClusterView":
        """Return the projected view after ``bundle`` has moved.

        ``usage`` is the expected usage of the bundle, in the order of `RESOURCES` and the units
        of load reports. It is subtracted from the source and added to the target, where it may
        be a larger or smaller fraction, since brokers differ in size. If they also differ in
        speed, ``gained`` is added to the target instead. ``source`` is None for a bundle without
        an owner.
        """
        brokers = self.brokers
        traffic, used = brokers.traffic.copy(), brokers.usage.copy()
        long_msgs, arriving = brokers.long_msgs_per_s.copy(), brokers.preallocated_msgs_per_s.copy()
        rates, long_rate = self.short_rates(bundle), self.long_msgs_per_s(bundle)
        gains = self.row(target)
        traffic[gains] += rates
        used[gains] += usage if gained is None else gained
        arriving[gains] += long_rate
        if source is not None:
            loses = self.row(source)
            traffic[loses] = np.maximum(traffic[loses] - rates, 0.0)
            used[loses] = np.maximum(used[loses] - usage, 0.0)
            long_msgs[loses] = max(long_msgs[loses] - long_rate, 0.0)
        projected = brokers.having(
            traffic=traffic,
            usage=used,
            long_msgs_per_s=long_msgs,
            preallocated_msgs_per_s=arriving,
        )
        moved = Moved.of(self.moved).adding(bundle, target)
        return replace(self, brokers=projected, moved=moved)
