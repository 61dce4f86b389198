from collections.abc import Collection, Iterable, Iterator
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Mask
from loadmanager.core.ids import BundleId, Namespace, namespace_of
from loadmanager.core.policies import DEFAULT_DOMAIN, IsolationPolicy, hosts_matching, open_to
from loadmanager.core.scores import ResourceWeights

Counts = NDArray[np.int64]


def isolated(view: ClusterView, namespace: Namespace, weights: ResourceWeights) -> Mask:
    """Return the brokers that isolation excludes for ``namespace``, as a mask.

    A namespace without a policy may not use the primary brokers of any policy. A namespace with
    a policy may use only the brokers of that policy, even if none remains.
    """
    names, policies = view.brokers.names, view.policies
    policy = policies.governing(namespace)
    if policy is None:
        return ~open_to(policies, None, names)
    return ~_served_by(view, policy, weights)


def _served_by(view: ClusterView, policy: IsolationPolicy, weights: ResourceWeights) -> Mask:
    names = view.brokers.names
    primary = hosts_matching(policy.primary, names)
    fit = primary & (view.scores(weights) <= policy.usage_threshold)
    if np.count_nonzero(fit) >= policy.min_limit:
        return primary
    return primary | hosts_matching(policy.secondary, names)


def namespaces_on(view: ClusterView, group: Collection[Namespace], without: BundleId) -> Counts:
    served = {(namespace, row) for namespace, row in _served(view, group, without)}
    return _counts(view, (row for _, row in served))


def bundles_on(view: ClusterView, namespace: Namespace, without: BundleId) -> Counts:
    return _counts(view, (row for _, row in _served(view, {namespace}, without)))


def _served(
    view: ClusterView, group: Collection[Namespace], without: BundleId
) -> Iterator[tuple[Namespace, int]]:
    """Return the namespace and the broker's row of each bundle of a group but one."""
    bundles, moved, listed_by = view.bundles, view.moved, view.owned.listed_by
    gone = {*moved, without}
    arriving = ((namespace_of(one), one) for one in moved if one != without)
    listed = (
        (name, row)
        for name in group
        for row in bundles.namespaces.get(name, ())
        if row < len(listed_by) and listed_by[row] >= 0 and bundles.names[row] not in gone
    )
    return chain(
        ((name, view.brokers.index[moved[one]]) for name, one in arriving if name in group),
        ((name, int(listed_by[row])) for name, row in listed),
    )


def _counts(view: ClusterView, rows: Iterable[int]) -> Counts:
    return np.bincount(np.fromiter(rows, np.intp), minlength=len(view.brokers.names))


def fewest_by_domain(view: ClusterView, counts: Counts, among: Mask) -> Mask:
    """Return the brokers of the failure domains with the lowest count among those in ``among``."""
    domains = [view.policies.domains.get(name, DEFAULT_DOMAIN) for name in view.brokers.names]
    totals = dict.fromkeys(domains, 0)
    for domain, count in zip(domains, counts.tolist(), strict=True):
        totals[domain] += count
    least = min(
        (totals[domain] for domain, counts_ in zip(domains, among, strict=True) if counts_),
        default=0,
    )
    return np.array([totals[domain] == least for domain in domains], dtype=np.bool_)


def fewest(counts: Counts, among: Mask) -> Mask:
    least = int(counts[among].min(initial=np.iinfo(np.int64).max))
    return np.asarray(counts <= least)


def group_counts(view: ClusterView, bundle: BundleId) -> Counts | None:
    group = view.policies.group_of(namespace_of(bundle))
    return namespaces_on(view, group, bundle) if group else None
