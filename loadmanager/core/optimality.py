"""The distance of a cluster from the best possible balance, with and without policies.

The bound is computed by `lower_bound`. If an isolation policy confines bundles to some brokers,
these bundles and brokers alone form a problem whose bound also holds for the whole cluster,
since other bundles only add load. That a draining broker may serve no bundle is treated as a
policy as well. Anti-affinity and even spreading are ignored, so the bound within policies is
valid, but the best assignment that they allow may be above it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.bounds import HOUR_MS, TIME_MS
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.fields import Fields
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.served import served_in, sums_by_broker
from loadmanager.core.lower_bound import lower_bound, water_levels
from loadmanager.core.policies import Policies, governed, hosts_matching, open_to
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, six_digits
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, FloatArray, ResourceWeights

MOVING: Final = (CPU, BANDWIDTH_IN, BANDWIDTH_OUT)
"""The resources whose usage moves with a bundle; heap usage does not."""

_IDLE: Final = 1e-4
"""If the best possible usage is at most this, a cluster is idle and has no gap."""

_NO_MOVES: Final[Mapping[BundleId, BrokerId]] = MappingProxyType({})


_MOST_CONFINED: Final = 50_000
"""Brokers of all confinements that are considered; any number is valid, more are slower."""


@dataclass(frozen=True, slots=True, eq=False)
class Confined:
    """Rows of bundles that only some brokers may serve."""

    bundles: Indices
    brokers: Mask


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Assignable:
    cost: FloatArray
    background: FloatArray
    capacity: FloatArray
    class_of: Indices
    present: Mask

    def bound(self, confined: Iterable[Confined] = ()) -> float:
        brokers = (self.background, self.capacity, self.class_of)
        found, left = lower_bound(self.cost, *brokers, self.present), _MOST_CONFINED
        for one in confined:
            present = one.brokers & self.present
            left -= int(np.count_nonzero(present))
            if present.any() and len(one.bundles) and left >= 0:
                found = max(found, lower_bound(self.cost[:, one.bundles], *brokers, present))
        return found

    def levels(self) -> FloatArray:
        """Return (R,) the level of each resource if bundles were divisible like water."""
        return water_levels(self.cost, self.background, self.capacity, self.class_of, self.present)

    def of_resource(self, resource: int) -> "Assignable":
        at = slice(resource, resource + 1)
        return replace(
            self,
            cost=self.cost[:, :, at],
            background=self.background[:, at],
            capacity=self.capacity[:, at],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimality:
    """The balance of a cluster, in fractions of capacity.

    Attributes:
        largest: the largest demand of any resource of any broker.
        bound: a lower bound of ``largest`` over all assignments of these bundles.
        bound_within_policies: the same over the assignments that isolation policies allow.
        excess: how far brokers are above the level that all load would reach if it were
            divisible like water; mean over the brokers, as a fraction of the level.
    """

    largest: float
    bound: float
    bound_within_policies: float
    excess: float

    @property
    def gap(self) -> float:
        """How far the largest demand is above the bound, as a fraction of the bound."""
        return _above(self.largest, self.bound)

    @property
    def gap_within_policies(self) -> float:
        """The gap to the bound within policies: the most that moves could close."""
        return _above(self.largest, self.bound_within_policies)


def by_namespace(bundles: Sequence[BundleId]) -> dict[Namespace, list[int]]:
    found: dict[Namespace, list[int]] = {}
    for row, bundle in enumerate(bundles):
        found.setdefault(namespace_of(bundle), []).append(row)
    return found


def confinements(
    policies: Policies,
    namespaces: Mapping[Namespace, Sequence[int]],
    count: int,
    brokers: tuple[BrokerId, ...],
) -> tuple[Confined, ...]:
    """Return the confinements by isolation policies: of bundles without one, and one per policy.

    ``namespaces`` has the rows of each namespace's bundles; only rows below ``count`` are used.
    Secondary brokers count as allowed, whether or not they are needed.
    """
    if not policies.isolation:
        return ()
    every, of = governed(policies, namespaces, count)
    parts = np.split(np.argsort(of, kind="stable"), np.bincount(of, minlength=len(every)).cumsum())
    masks = [
        hosts_matching((*policy.primary, *policy.secondary), brokers, policies.of_brokers)
        if policy
        else open_to(policies, None, brokers)
        for policy in every
    ]
    return tuple(map(Confined, parts, masks))


def excess_over_level(demand: FloatArray, background: FloatArray, level: float) -> float:
    """Return how far brokers are above a level on average, as a fraction of the level.

    ``demand`` and ``background`` (B, R) are fractions; the part of a background above the level
    is ignored.
    """
    above = demand.max(axis=1) - np.maximum(background.max(axis=1), level)
    return float(np.maximum(above, 0.0).mean()) / level if level > _IDLE else 0.0


def optimality_of(
    view: ClusterView,
    learned: Learned | None = None,
    *,
    weights: ResourceWeights | None = None,
    moves: Mapping[BundleId, BrokerId] = _NO_MOVES,
) -> Optimality | None:
    """Return the balance of a cluster from its reports; None if it cannot be determined.

    Resources for which some broker reports no limit are left out.

    Args:
        view: the cluster; None is returned if it has no brokers.
        learned: costs and speeds of brokers learned by the joint strategy; None to divide usage
            by shares of the brokers' traffic, with brokers of equal speed.
        weights: resources of weight 0 are left out; None for all resources that move with a
            bundle.
        moves: bundles to count on another broker than the one that lists them.
    """
    found = divided(view, learned, weights)
    if found is None:
        return None
    bundles, demand = found.bundles, found.demand(_with_moves(view, found.owner, moves))
    bound, confined = bundles.bound(), tuple(_confined(view))
    level, background = float(bundles.levels().max()), bundles.background / bundles.capacity
    return Optimality(
        largest=float(demand.max()),
        bound=bound,
        bound_within_policies=bundles.bound(confined) if confined else bound,
        excess=excess_over_level(demand, background, level),
    )


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Divided:
    """Usage of brokers, divided into that of their bundles and other usage of their hosts.

    ``known`` are the R resources considered. In ``bundles``, capacity and background are divided
    by the brokers' speeds (B, R). ``owner`` has the broker row of each bundle row, -1 for none.
    """

    known: tuple[int, ...]
    bundles: Assignable
    speed: FloatArray
    owner: Indices

    def demand(self, owner: Indices) -> FloatArray:
        """Return (B, R) the usage of brokers if bundles were owned as in ``owner``, fractions."""
        served = sums_by_broker(owner, self.bundles.cost[0], len(self.speed))
        return np.asarray((self.bundles.background + served) / self.bundles.capacity)


def divided(
    view: ClusterView, learned: Learned | None, weights: ResourceWeights | None
) -> Divided | None:
    brokers = view.brokers.reported
    wanted = np.ones(brokers.limit.shape[1]) if weights is None else weights.as_array()
    known = [one for one in MOVING if wanted[one] > 0 and (brokers.limit[:, one] > 0).all()]
    if not len(brokers.names) or not known:
        return None
    usage, limit = brokers.usage[:, known], brokers.limit[:, known]
    sizes, speed = _sizes(view, learned, known)
    owner = view.owned.listed_by
    served = sums_by_broker(owner, sizes, len(limit)) * speed
    # The predicted usage of bundles is limited to the usage of their broker.
    factor = np.divide(usage, served, out=np.ones_like(usage), where=served > usage)
    sizes *= factor[owner]
    bundles = Assignable(
        cost=sizes[np.newaxis],
        background=np.maximum(usage - served * factor, 0.0) / speed,
        capacity=limit / speed,
        class_of=np.zeros(len(limit), dtype=np.intp),
        present=np.ones(len(limit), dtype=np.bool_),
    )
    return Divided(known=tuple(known), bundles=bundles, speed=speed, owner=owner)


def _sizes(
    view: ClusterView, learned: Learned | None, known: Sequence[int]
) -> tuple[FloatArray, FloatArray]:
    """Return (K, R) the usage of bundles on a broker of speed 1, and (B, R) the brokers' speeds.

    Bundles that no report lists, or that were never measured, have no usage.
    """
    counts = (view.owned.listed_by >= 0) & view.bundles.known
    if learned is None:
        sizes = traffic_sizes(view)[:, known]
        speed = np.ones((len(view.brokers.names), len(known)))
    else:
        served = served_in(view.bundles, view.bundles.short)
        sizes = served @ learned.unit_costs[known].T
        speed = learned.brokers.of(view.brokers.reported).speed[:, known]
    sizes[~counts] = 0.0
    return sizes, speed


def _with_moves(view: ClusterView, owner: Indices, moves: Mapping[BundleId, BrokerId]) -> Indices:
    found = owner.copy() if moves else owner
    for bundle, target in moves.items():
        row = view.bundles.row(bundle)
        if row is not None and owner[row] >= 0:
            found[row] = view.row(target)
    return found


def _confined(view: ClusterView) -> Iterator[Confined]:
    """Yield confinements by policies, and of all bundles to brokers that are not draining."""
    brokers, count = view.brokers, len(view.bundles.known)
    takes = ~brokers.draining
    if not takes.all():
        yield Confined(np.arange(count), takes)
    for one in confinements(view.policies, view.bundles.namespaces, count, brokers.names):
        yield Confined(one.bundles, one.brokers & takes)


def traffic_sizes(view: ClusterView) -> FloatArray:
    """Return (K, 5) the usage of each bundle by its share of its broker's traffic.

    As in `TrafficShare`: CPU half by messages and half by bytes, network by bytes.
    """
    owner, bundles, brokers = view.owned.listed_by, view.bundles, view.brokers.reported
    msgs = _shares(bundles.short_msgs_per_s, brokers.msgs_per_s[owner])
    volume = _shares(bundles.short_bytes_per_s, brokers.bytes_per_s[owner])
    rates, totals, usage = bundles.short, brokers.traffic, brokers.usage
    found = np.zeros((len(owner), usage.shape[1]))
    found[:, CPU] = (msgs + volume) / 2.0 * usage[owner, CPU]
    for resource, column in ((BANDWIDTH_IN, BYTES_IN), (BANDWIDTH_OUT, BYTES_OUT)):
        share = _shares(rates[:, column], totals[owner, column])
        found[:, resource] = share * usage[owner, resource]
    found[owner < 0] = 0.0
    return found


def _shares(part: FloatArray, whole: FloatArray) -> FloatArray:
    busy = whole > 0
    # Take the minimum before the division: otherwise the quotient may overflow.
    return np.where(busy, np.minimum(part, whole) / np.where(busy, whole, 1.0), 0.0)


def _above(largest: float, bound: float) -> float:
    return max(largest / bound - 1.0, 0.0) if bound > _IDLE else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancePoint:
    """The distance of a cluster from the best possible balance at one time.

    ``largest`` is the largest usage of any broker, ``bound`` a lower bound of it over all
    assignments that the policies allow, and ``gap`` is ``(largest - bound) / bound``.
    """

    at_ms: int
    gap: float
    largest: float
    bound: float


def last_hour(
    points: Sequence[BalancePoint], now_ms: int, most_points: int
) -> tuple[BalancePoint, ...]:
    """Return the points of the last hour, thinned out evenly; the newest is always included."""
    recent = [one for one in points if now_ms - HOUR_MS <= one.at_ms <= now_ms]
    step = max(1, -(-len(recent) // most_points))
    return tuple(recent[::-1][::step][::-1])


def course_to_json(points: Sequence[BalancePoint]) -> dict[str, Any]:
    return {
        "atMs": [one.at_ms for one in points],
        "gap": [six_digits(one.gap) for one in points],
        "largest": [six_digits(one.largest) for one in points],
        "bound": [six_digits(one.bound) for one in points],
    }


def course_from_fields(course: Fields) -> tuple[BalancePoint, ...]:
    """Return no points for an object without fields. Raises `MalformedContent`."""
    if not course.names():
        return ()
    at_ms = course.counts("atMs", bound=TIME_MS)
    gap, largest, bound = (course.rates(name, len(at_ms)) for name in ("gap", "largest", "bound"))
    return tuple(
        BalancePoint(at_ms=at_ms[row], gap=gap[row], largest=largest[row], bound=bound[row])
        for row in range(len(at_ms))
    )
