"""How far a cluster is from what could be: a proven bound, and what policies leave of it.

The bound is that of `lower_bound`. Where isolation policies keep bundles to some brokers,
these bundles and these brokers by themselves are a problem whose bound holds for the whole:
other bundles only add to it. A draining broker may serve nothing, which counts as a policy,
too. Anti-affinity and even spreading are not counted, so the bound within policies is one,
too, but the best that they allow may lie above it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.joint.learning import Learned
from loadmanager.core.joint.served import served_in
from loadmanager.core.lower_bound import lower_bound, water_levels
from loadmanager.core.policies import IsolationPolicy, Policies, hosts_matching, open_to
from loadmanager.core.rates import BYTES_IN, BYTES_OUT
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, FloatArray, ResourceWeights

MOVING: Final = (CPU, BANDWIDTH_IN, BANDWIDTH_OUT)
"""The resources whose usage moves with a bundle; heap usage does not."""

_IDLE: Final = 1e-4
"""If the best possible usage is at most this, a cluster is idle and has no gap."""

_NO_MOVES: Final[Mapping[BundleId, BrokerId]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class Confined:
    """Bundles (K,) that only certain brokers (B,) may serve."""

    bundles: Mask
    brokers: Mask


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Assignable:
    """Bundles and brokers, apart from which has what: the arguments of `lower_bound`."""

    cost: FloatArray
    background: FloatArray
    capacity: FloatArray
    class_of: Indices
    present: Mask

    def bound(self, confined: Iterable[Confined] = ()) -> float:
        """Return what the largest demand is at least, within what is ``confined``."""
        cost, background, capacity, class_of = (
            self.cost, self.background, self.capacity, self.class_of,
        )  # fmt: skip
        found = lower_bound(cost, background, capacity, class_of, self.present)
        for one in confined:
            brokers = one.brokers & self.present
            if brokers.any() and one.bundles.any():
                inner = cost[:, one.bundles]
                found = max(found, lower_bound(inner, background, capacity, class_of, brokers))
        return found

    def levels(self) -> FloatArray:
        """Return (R,) how high each resource would stand if bundles were like water."""
        return water_levels(self.cost, self.background, self.capacity, self.class_of, self.present)

    def of_resource(self, resource: int) -> "Assignable":
        """Return the same with one resource alone."""
        at = slice(resource, resource + 1)
        return Assignable(
            cost=self.cost[:, :, at],
            background=self.background[:, at],
            capacity=self.capacity[:, at],
            class_of=self.class_of,
            present=self.present,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Optimality:
    """How a cluster stands, as fractions of capacity.

    Attributes:
        largest: the largest demand of any resource of any broker.
        bound: what no assignment of these bundles could be below.
        bound_within_policies: what none that isolation policies allow could be below.
        excess: how far brokers stand above the level to which all load would fill them like
            water, mean over the brokers, as a fraction of the level.
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
        """How far it is above what policies allow: all that moves could ever close."""
        return _above(self.largest, self.bound_within_policies)


def by_namespace(bundles: Sequence[BundleId]) -> dict[Namespace, list[int]]:
    """Return the rows of each namespace's bundles."""
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
    """Return what isolation policies confine: an element for each policy, one for the others.

    ``namespaces`` has the rows of each namespace's bundles, of which the first ``count``
    are looked at. Secondary brokers count as allowed, whether they are needed or not.
    """
    if not policies.isolation:
        return ()
    masks: dict[IsolationPolicy | None, Mask] = {}
    for namespace, rows in namespaces.items():
        policy = policies.governing(namespace)
        mask = masks.setdefault(policy, np.zeros(count, dtype=np.bool_))
        mask[[row for row in rows if row < count]] = True
    return tuple(
        Confined(mask, may_ever_serve(policies, policy, brokers)) for policy, mask in masks.items()
    )


def may_ever_serve(
    policies: Policies, policy: IsolationPolicy | None, brokers: tuple[BrokerId, ...]
) -> Mask:
    """Return which brokers isolation allows at any load: with ``policy``, or without one."""
    if policy is None:
        return open_to(policies, None, brokers)
    return hosts_matching((*policy.primary, *policy.secondary), brokers)


def excess_over_level(demand: FloatArray, background: FloatArray, level: float) -> float:
    """Return the mean of how far brokers stand above a level, as a fraction of it.

    ``demand`` and ``background`` (B, R) are fractions; what a background alone puts above
    the level counts for nothing.
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
    """Return how a cluster stands by its reports; None where nothing can be said of it.

    Resources of which some broker does not say what it has are left out.

    Args:
        view: the cluster; without brokers nothing can be said.
        learned: what the joint strategy learned of costs and of brokers' speeds; None for
            bundles that use their shares of their brokers' traffic, on brokers alike.
        weights: resources of weight 0 are left out; None for all that go with a bundle.
        moves: bundles that count on another broker than on the one that lists them.
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
    """Usage of brokers, divided among their bundles and other work of their hosts.

    ``known`` are the R resources that count. ``bundles`` is at the brokers' speeds: capacity
    and background over the speed (B, R). ``owner`` lists each bundle row's broker, -1 for none.
    """

    known: tuple[int, ...]
    bundles: Assignable
    speed: FloatArray
    owner: Indices

    def demand(self, owner: Indices) -> FloatArray:
        """Return (B, R) what brokers would use if ``owner`` had the bundles, fractions."""
        served = sums_by_broker(owner, self.bundles.cost[0], len(self.speed))
        return np.asarray((self.bundles.background + served) / self.bundles.capacity)


def divided(
    view: ClusterView, learned: Learned | None, weights: ResourceWeights | None
) -> Divided | None:
    """Return what is said of each broker's use; the arguments are those of `optimality_of`."""
    brokers = view.brokers.reported
    wanted = np.ones(brokers.limit.shape[1]) if weights is None else weights.as_array()
    known = [one for one in MOVING if wanted[one] > 0 and (brokers.limit[:, one] > 0).all()]
    if not len(brokers.names) or not known:
        return None
    usage, limit = brokers.usage[:, known], brokers.limit[:, known]
    sizes, speed = _sizes(view, learned, known)
    owner = view.owned.listed_by
    served = sums_by_broker(owner, sizes, len(limit)) * speed
    # What bundles are predicted to use is at most what their broker uses.
    factor = np.where(served > usage, usage / np.where(served > 0, served, 1.0), 1.0)
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
    """Return (K, R) what bundles use on a broker of speed 1, and (B, R) the brokers' speeds.

    What no report lists uses nothing, and so does what was never measured.
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


def sums_by_broker(owner: Indices, sizes: FloatArray, brokers: int) -> FloatArray:
    """Return (B, R): the sums of the bundles of each broker; those of owner -1 have no broker."""
    columns = [np.bincount(owner + 1, column, brokers + 1)[1:] for column in sizes.T]
    return np.stack(columns, axis=1)


def _with_moves(view: ClusterView, owner: Indices, moves: Mapping[BundleId, BrokerId]) -> Indices:
    found = owner.copy() if moves else owner
    for bundle, target in moves.items():
        row = view.bundles.row(bundle)
        if row is not None and owner[row] >= 0:
            found[row] = view.row(target)
    return found


def _confined(view: ClusterView) -> Iterator[Confined]:
    """Yield what may go to some brokers only: all bundles to those that do not drain."""
    brokers, count = view.brokers, len(view.bundles.known)
    takes = ~brokers.draining
    if not takes.all():
        yield Confined(np.ones(count, dtype=np.bool_), takes)
    for one in confinements(view.policies, view.bundles.namespaces, count, brokers.names):
        yield Confined(one.bundles, one.brokers & takes)


def traffic_sizes(view: ClusterView) -> FloatArray:
    """Return (K, 5) what each bundle uses by its share of its broker's traffic.

    As `TrafficShare` has it: CPU half by messages and half by bytes, network by bytes.
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
    # The lesser of both first: a figure and its bound may be too far apart for a quotient.
    return np.where(busy, np.minimum(part, whole) / np.where(busy, whole, 1.0), 0.0)


def _above(largest: float, bound: float) -> float:
    return max(largest / bound - 1.0, 0.0) if bound > _IDLE else 0.0
