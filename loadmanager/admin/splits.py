"""Splits asked for by people: which bundle is meant, and whether it was done."""

from dataclasses import dataclass

from loadmanager.common.bundle_names import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.core.splitting import SPLIT_ALGORITHMS, can_split
from loadmanager.leader.leadership import Leadership, unavailable
from loadmanager.ports import (
    BundleUnknown,
    SplitRefused,
    Unavailable,
)

_POSITIONS = "specified_positions_divide"


@dataclass(slots=True, eq=False)
class SplitRequests:
    """The application's side of `SplitService`."""

    context: Context
    leading: Leadership
    wait_s: float

    async def split(self, namespace: Namespace, chosen: str, order: SplitOrder) -> None:
        """Have a bundle cut, and wait for it; see `SplitService`."""
        if order.algorithm not in SPLIT_ALGORITHMS:
            known = ", ".join(sorted(SPLIT_ALGORITHMS))
            raise SplitRefused(f"split algorithm {order.algorithm!r}; expected one of {known}")
        if order.algorithm == _POSITIONS and not order.positions:
            raise SplitRefused(f"{_POSITIONS} needs positions, a JSON array of numbers, as body")
        leader_term = self.leading.require_term()
        bundle = self._chosen(await boundaries_of(self.context.cluster_state, namespace), chosen)
        if not can_split(bundle):
            raise SplitRefused(f"{bundle} holds a single position and cannot be cut")
        if self.context.cluster_state.live_owner(bundle) is None:
            raise SplitRefused(f"nobody owns {bundle} now; look one of its topics up first")
        with unavailable(f"the order to split {bundle} was not written"):
            await leader_term.splits.order(bundle, order)

        def is_cut() -> bool:
            boundaries = self.context.cluster_state.known_boundaries(namespace)
            if boundaries is not None and bundle not in boundaries:
                return True
            if self.leading.leader_term is leader_term:
                leader_term.splits.check_ordered([bundle], f"the order to split {bundle}")
            return False

        if not await self.context.cluster_state.changes.until(
            is_cut, self.context.clock, self.wait_s
        ):
            raise Unavailable(
                f"{bundle} was not cut within {self.wait_s:g} s; its broker's sidecar logs why"
            )

    def _chosen(self, boundaries: Boundaries, chosen: str) -> BundleId:
        if chosen in {"LARGEST", "HOT"}:
            return self._heaviest(boundaries, by_topics=chosen == "LARGEST")
        return bundle_in(boundaries, chosen)

    def _heaviest(self, boundaries: Boundaries, *, by_topics: bool) -> BundleId:
        reported = {
            bundle: stats.topics if by_topics else stats.bytes_per_s
            for known in self.context.cluster_state.loads.reports.values()
            for bundle, stats in known.report.bundles.items()
            if bundle in boundaries
        }
        if not reported:
            raise BundleUnknown(f"no broker reports a bundle of {boundaries.namespace}")
        return max(reported, key=lambda bundle: (reported[bundle], bundle))
