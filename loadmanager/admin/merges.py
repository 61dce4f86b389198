"""Merges asked for by people: which two are meant, may they be one, and was it done."""

from dataclasses import dataclass

from loadmanager.common.bundle_names import boundaries_of, bundle_in
from loadmanager.common.context import Parts
from loadmanager.common.runtime_settings import Tuning
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.splitting import CannotMerge, Merge, cut_again, neighbours
from loadmanager.leader.leadership import Leading, unavailable
from loadmanager.ports import MergeRefused, Unavailable


@dataclass(slots=True, eq=False)
class MergeRequests:
    """The application's side of `MergeService`."""

    parts: Parts
    leading: Leading
    tuning: Tuning
    wait_s: float

    async def merge(self, namespace: Namespace, range_text: str, other: str | None) -> BundleId:
        """Have two bundles merged, and wait for it; see `MergeService`."""
        desk = self.leading.require_desk()
        both = _chosen(await boundaries_of(self.parts.picture, namespace), range_text, other)
        self._check_size(both)
        hotter = max(both.halves, key=lambda half: self._reported(half).bytes_per_s)
        with unavailable(f"the order to merge {both.whole} was not written"):
            await desk.splits.merge(both, hotter)

        def is_merged() -> bool:
            boundaries = self.parts.picture.known_boundaries(namespace)
            if boundaries is not None and both.whole in boundaries:
                return True
            if self.leading.desk is desk:
                why = ": a half was moved, split or deleted"
                desk.splits.check_ordered(both.halves, f"the order to merge {both.whole}", why)
            return False

        if not await self.parts.picture.changes.until(is_merged, self.parts.clock, self.wait_s):
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
        holding = self.parts.picture.live_owner(half)
        known = holding and self.parts.picture.loads.reports.get(holding.broker)
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
