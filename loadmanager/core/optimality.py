"""How far a cluster is from what could be: a proven bound, and what policies leave of it.

The bound is that of `lower_bound`. Where isolation policies keep bundles to some brokers,
these bundles and these brokers by themselves are a problem whose bound holds for the whole:
other bundles only add to it. Anti-affinity and even spreading are not counted, so the bound
within policies is one, too, but the best that they allow may lie above it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.averages import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.lower_bound import lower_bound, water_levels
from loadmanager.core.policies import IsolationPolicy, Policies, hosts_matching, open_to
from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, FloatArray

Indices = NDArray[np.intp]

MOVING: Final = (CPU, BANDWIDTH_IN, BANDWIDTH_OUT)
"""The resources whose use goes with a bundle; a heap stays where it is."""


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


def confinements(
    policies: Policies, bundles: Sequence[BundleId], brokers: tuple[BrokerId, ...]
) -> tuple[Confined, ...]:
    """Return what isolation policies confine: an element for each policy, one for the others.

    Secondary brokers count as allowed, whether they are needed or not.
    """
    if not policies.isolation:
        return ()
    governing: dict[Namespace, IsolationPolicy | None] = {}
    rows: dict[IsolationPolicy | None, list[int]] = {}
    for row, bundle in enumerate(bundles):
        namespace = namespace_of(bundle)
        if namespace not in governing:
            governing[namespace] = policies.governing(namespace)
        rows.setdefault(governing[namespace], []).append(row)
    found = []
    for policy, its in rows.items():
        mask = np.zeros(len(bundles), dtype=np.bool_)
        mask[its] = True
        found.append(Confined(mask, may_ever_serve(policies, policy, brokers)))
    return tuple(found)


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
    return float(np.maximum(above, 0.0).mean()) / level if level > 0 else 0.0


def optimality_of(view: ClusterView, sizes: FloatArray | None = None) -> Optimality | None:
    """Return how a cluster stands by its reports; None where nothing can be said of it.

    Resources of which some broker does not say what it has are left out.

    Args:
        view: the cluster; without brokers nothing can be said.
        sizes: (K, 5) what each bundle uses, in the units of reports and the rows of the
            view's bundles, as far as it is known; None for its share of its broker's traffic.
    """
    brokers, names = view.brokers, view.bundles.names
    known = [one for one in MOVING if (brokers.limit[:, one] > 0).all()]
    if not len(brokers.names) or not known:
        return None
    usage, limit = brokers.usage[:, known], brokers.limit[:, known]
    listed = np.flatnonzero(view.owned.listed_by >= 0)
    size = (traffic_sizes(view) if sizes is None else sizes)[listed][:, known]
    served = np.zeros_like(usage)
    np.add.at(served, view.owned.listed_by[listed], size)
    background = np.maximum(usage - served, 0.0)
    bundles = Assignable(
        cost=size[np.newaxis],
        background=background,
        capacity=limit,
        class_of=np.zeros(len(limit), dtype=np.intp),
        present=np.ones(len(limit), dtype=np.bool_),
    )
    confined = confinements(view.policies, [names[row] for row in listed.tolist()], brokers.names)
    level = float(bundles.levels().max())
    return Optimality(
        largest=float((usage / limit).max()),
        bound=bundles.bound(),
        bound_within_policies=bundles.bound(confined),
        excess=excess_over_level(usage / limit, background / limit, level),
    )


def traffic_sizes(view: ClusterView) -> FloatArray:
    """Return (K, 5) what each bundle uses by its share of its broker's traffic.

    As `TrafficShare` has it: CPU half by messages and half by bytes, network by bytes.
    """
    owner = np.asarray(view.owned.listed_by, dtype=np.intp)
    listed = owner >= 0
    rates, totals = view.bundles.short, view.brokers.traffic[owner]
    msgs = _shares(rates[:, [MSGS_IN, MSGS_OUT]].sum(axis=1), totals[:, :2].sum(axis=1))
    volume = _shares(rates[:, [BYTES_IN, BYTES_OUT]].sum(axis=1), totals[:, 2:].sum(axis=1))
    found = np.zeros((len(owner), view.brokers.usage.shape[1]))
    found[:, CPU] = (msgs + volume) / 2.0
    found[:, BANDWIDTH_IN] = _shares(rates[:, BYTES_IN], totals[:, BYTES_IN])
    found[:, BANDWIDTH_OUT] = _shares(rates[:, BYTES_OUT], totals[:, BYTES_OUT])
    return np.where(listed[:, np.newaxis], found * view.brokers.usage[owner], 0.0)


def _shares(part: FloatArray, whole: FloatArray) -> FloatArray:
    busy = whole > 0
    return np.where(busy, np.minimum(part / np.where(busy, whole, 1.0), 1.0), 0.0)


def _above(largest: float, bound: float) -> float:
    return max(largest / bound - 1.0, 0.0) if bound > 0 else 0.0
