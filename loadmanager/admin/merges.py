from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from pydantic import Field

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Query
from loadmanager.common.cluster_state import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.splitting.merging import CannotMerge, Merge, cut_again, neighbours
from loadmanager.leader.term import Leadership, unavailable
from loadmanager.ports.administration import MergeRefused
from loadmanager.ports.lookup import Unavailable


@dataclass(slots=True, eq=False)
class MergeRequests:
    context: Context
    leading: Leadership
    settings: RuntimeSettings
    wait_s: float

    async def merge(self, namespace: Namespace, range_text: str, other: str | None) -> BundleId:
        """Merge two bundles, and return the result when it is in the boundaries of the namespace.

        ``other`` is the range of the second bundle, None for the one above. Raises
        `LeaderElsewhere`: another sidecar leads; `NamespaceUnknown`: there is no such namespace;
        `BundleUnknown`: it has no such bundle; `MergeRefused`: they are not adjacent, no broker
        owns one of them, the result would be split again at once, or neither owner may have both;
        `Conflict`: one of them is being split, merged or moved; `Unavailable`: they were not merged
        in time, and stay as they were.
        """
        leader_term = self.leading.require_term()
        both = _chosen(
            await boundaries_of(self.context.cluster_state, namespace), range_text, other
        )
        self._check_size(both)
        hotter = max(both.halves, key=lambda half: self._reported(half).bytes_per_s)
        with unavailable(f"the order to merge {both.whole} was not written"):
            await leader_term.splits.merge(both, hotter)

        def is_merged() -> bool:
            boundaries = self.context.cluster_state.known_boundaries(namespace)
            if boundaries is not None and both.whole in boundaries:
                return True
            if self.leading.leader_term is leader_term:
                why = ": a half was moved, split or deleted"
                leader_term.splits.check_ordered(
                    both.halves, f"the order to merge {both.whole}", why
                )
            return False

        if not await self.context.cluster_state.changes.until(
            is_merged, self.context.clock, self.wait_s
        ):
            raise Unavailable(
                f"{both.lower} and {both.upper} were not merged within {self.wait_s:g} s; "
                "the sidecar of their broker logs why"
            )
        return both.whole

    def _check_size(self, both: Merge) -> None:
        policy = self.settings.now.split_policy
        excess = cut_again(policy.rules, *(self._reported(half) for half in both.halves))
        if policy.enabled and excess:
            raise MergeRefused(f"{both.whole} would be cut again at once: it has {excess}")

    def _reported(self, half: BundleId) -> BundleStats:
        holding = self.context.cluster_state.live_owner(half)
        known = holding and self.context.cluster_state.loads.reports.get(holding.broker)
        return known.report.bundles.get(half, BundleStats()) if known else BundleStats()


def _chosen(boundaries: Boundaries, range_text: str, other: str | None) -> Merge:
    one = bundle_in(boundaries, range_text)
    after = boundaries.bundles.index(one) + 1
    if other is None and after == len(boundaries.bundles):
        raise MergeRefused(f"{one} is the last bundle of {boundaries.namespace}")
    second = boundaries.bundles[after] if other is None else bundle_in(boundaries, other)
    try:
        return neighbours(boundaries, one, second)
    except CannotMerge as error:
        raise MergeRefused(str(error)) from error


class MergeQuery(Query):
    """The neighbour with which a bundle is merged."""

    neighbour: str = Field("", alias="with")
    """The range of the adjacent bundle above or below; by default the one above."""


class MergedBundle(Document):
    """The bundle that results from a merge."""

    bundle: str
    """The range of the bundle."""


class Merges(Resource, tag="bundles"):
    def __init__(self, merge: Callable[[Namespace, str, str | None], Awaitable[BundleId]]) -> None:
        self._merge = merge

    @operation(
        "PUT",
        "/admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/merge",
        Reply(200, "The two bundles are one in the boundaries of the namespace.", MergedBundle),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "One of the two is being moved, split or merged."),
        Reply(
            412,
            "They are not adjacent, one of them has no owner, their whole would be split "
            "again at once, or neither owner may have both.",
        ),
        leader=True,
    )
    async def merge(self, namespace: Namespace, bundle: str, query: MergeQuery) -> MergedBundle:
        """Merge a bundle with its neighbour.

        Both bundles are first moved to the owner of the busier one. Lookups of their topics wait
        while they are merged.
        """
        whole = await self._merge(namespace, bundle, query.neighbour or None)
        return MergedBundle(bundle=whole.rpartition("/")[2])
