"""Merges asked for by people: which two are meant, may they be one, and was it done."""

from dataclasses import dataclass

from loadmanager.common.bundle_names import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.splitting import CannotMerge, Merge, cut_again, neighbours
from loadmanager.leader.leadership import Leadership, unavailable
from loadmanager.ports import MergeRefused, Unavailable


@dataclass(slots=True, eq=False)
class MergeRequests:
    """The application's side of `MergeService`."""

    context: Context
    leading: Leadership
    tuning: RuntimeSettings
    wait_s: float

    async def merge(self, namespace: Namespace, range_text: str, other: str | None) -> BundleId:
        """Have two bundles merged, and wait for it; see `MergeService`."""
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
        policy = self.tuning.now.split_policy
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
