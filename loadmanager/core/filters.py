import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.cluster import ClusterView, Moved
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BundleId, Namespace, namespace_of
from loadmanager.core.plan import Reason, Refusal, Steps
from loadmanager.core.policies import DEFAULT_DOMAIN, open_to
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import Settings, setting

Counts = NDArray[np.int64]


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


def _counts(view: ClusterView, served: Iterable[tuple[Namespace, int]]) -> Counts:
    rows = np.fromiter((row for _, row in served), np.intp)
    return np.bincount(rows, minlength=len(view.brokers.names))


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


_REASONS: Final = tuple(Reason)
_CODES: Final = {reason: code for code, reason in enumerate(_REASONS)}
_ELIGIBLE: Final = -1
FINDING: Final = "to find brokers for its bundles"
"""What steps of work are for that depend on policies."""

_NUMBERS: Final = re.compile(r"\d+")


class Eligibility:
    def __init__(self, view: ClusterView) -> None:
        self._view = view
        self._codes: NDArray[np.int16] = np.full(len(view.brokers.names), _ELIGIBLE, dtype=np.int16)

    @property
    def mask(self) -> Mask:
        return np.asarray(self._codes == _ELIGIBLE)

    @property
    def rows(self) -> Indices:
        return np.flatnonzero(self._codes == _ELIGIBLE)

    def refuse(self, rows: Mask, reason: Reason) -> None:
        self._codes[rows & self.mask] = _CODES[reason]

    def prefer(self, rows: Mask, reason: Reason) -> None:
        """Refuse all brokers except ``rows``, unless no broker would remain."""
        if (rows & self.mask).any():
            self.refuse(~rows, reason)

    def refusals(self) -> tuple[Refusal, ...]:
        names = self._view.brokers.names
        return tuple(
            Refusal(names[row], _REASONS[code])
            for row, code in enumerate(self._codes.tolist())
            if code != _ELIGIBLE
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Filters(Settings):
    """The rules for which brokers may take a bundle, in the order in which they refuse."""

    max_report_age_s: float = setting(
        "A broker whose report is older takes and sheds nothing.",
        "seconds",
        default=180.0,
        within=(1.0, 86400.0),
    )
    max_topics: int = setting(
        "A broker with more topics takes no bundle while another has fewer.",
        "topics",
        "loadBalancerBrokerMaxTopics",
        default=50_000,
        within=(1, 10**9),
    )
    prefer_later_versions: bool = setting(
        "Give bundles only to brokers of the newest version, as in a rolling upgrade.",
        default=False,
        pulsar_key="preferLaterVersions",
    )

    failure_domains: bool = setting(
        "Spread an anti-affinity group over failure domains before brokers.",
        default=False,
        pulsar_key="failureDomainsEnabled",
    )
    even_bundles: bool = setting(
        "Give a bundle only to brokers with the fewest of its namespace, whatever their load.",
        default=False,
        pulsar_key="loadBalancerDistributeBundlesEvenlyEnabled",
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)

    def eligible(self, view: ClusterView, bundle: BundleId | None) -> Eligibility:
        """Return which brokers may take ``bundle``.

        None stands for a bundle to which no policy applies. The order is Pulsar's. Unlike in
        Pulsar, a mandatory rule is never dropped when no broker remains: a bundle that no broker
        may take stays where it is.
        """
        brokers = view.brokers
        found = Eligibility(view)
        found.refuse(brokers.draining, Reason.DRAINING)
        found.refuse(view.age_s > self.max_report_age_s, Reason.REPORT_STALE)
        found.refuse(~brokers.persistent, Reason.DOMAIN_UNSUPPORTED)
        if bundle is not None and view.policies.isolation:
            policy = view.policies.governing(namespace_of(bundle))
            fit = policy is None or view.scores(self.weights) <= policy.usage_threshold
            found.refuse(~open_to(view.policies, policy, brokers.names, fit=fit), Reason.ISOLATED)
        found.prefer(brokers.topics <= self.max_topics, Reason.TOO_MANY_TOPICS)
        if bundle is not None:
            self._keep_apart(view, bundle, found)
        if self.prefer_later_versions:
            found.prefer(_newest(brokers.versions, found.mask), Reason.OLDER_VERSION)
        return found

    def steps(self, view: ClusterView, bundle: BundleId) -> int:
        """Return how much work `eligible` is, in steps of weighing one bundle for one broker."""
        namespace, every = namespace_of(bundle), view.bundles.namespaces
        apart = view.policies.group_of(namespace) or ({namespace} if self.even_bundles else ())
        counted = sum(len(every.get(one, ())) + 1 for one in apart)
        return 500 + len(view.brokers.names) + 40 * (counted + len(view.moved) * bool(apart))

    def tells_apart(self, view: ClusterView) -> bool:
        policies = view.policies
        return bool(policies.isolation or policies.anti_affinity or self.even_bundles)

    def _keep_apart(self, view: ClusterView, bundle: BundleId, found: Eligibility) -> None:
        namespace = namespace_of(bundle)
        if group := view.policies.group_of(namespace):
            counts = _counts(view, set(_served(view, group, bundle)))
            if self.failure_domains:
                found.refuse(~fewest_by_domain(view, counts, found.mask), Reason.FAILURE_DOMAIN)
            found.refuse(~fewest(counts, found.mask), Reason.ANTI_AFFINITY)
        if self.even_bundles:
            counts = _counts(view, _served(view, {namespace}, bundle))
            found.refuse(~fewest(counts, found.mask), Reason.MORE_OF_NAMESPACE)


def _newest(versions: tuple[str, ...], among: Mask) -> Mask:
    ranks = [version_rank(version) for version in versions]
    newest = max((rank for rank, counts in zip(ranks, among, strict=True) if counts), default=())
    return np.array([rank == newest for rank in ranks], dtype=np.bool_)


def version_rank(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, for comparison: ``3.2.10-rc1`` is (3, 2, 10)."""
    return tuple(int(part) for part in _NUMBERS.findall(version.partition("-")[0]))


@dataclass(slots=True)
class RestrictedTargets:
    view: ClusterView
    filters: Filters

    def targets(self, bundle: int) -> tuple[Mask, int]:
        """Return the brokers that may take a bundle, and how many steps of work that is."""
        name = self.view.bundles.names[bundle]
        return self.filters.eligible(self.view, name).mask, self.filters.steps(self.view, name)

    def moved(self, bundle: int, target: int) -> None:
        name = self.view.bundles.names[bundle]
        moved = Moved.of(self.view.moved).adding(name, self.view.brokers.names[target])
        self.view = replace(self.view, moved=moved)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a round, for a strategy that chooses targets itself.

    ``gives`` and ``takes`` are the broker rows that may shed or take bundles, ``movable`` the
    bundle rows that may move, ``moves`` the maximum number of moves, ``steps`` those of the
    round. ``restricted`` is None if no policy distinguishes between bundles.
    """

    gives: Mask
    takes: Mask
    movable: Mask
    moves: int = 1_000_000
    steps: Steps = field(default_factory=Steps)
    restricted: RestrictedTargets | None = None
