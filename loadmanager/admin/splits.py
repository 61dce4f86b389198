from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from loadmanager.adapters.http.operations import Reply, Resource, operation
from loadmanager.adapters.http.parameters import PATH_PARAMETERS, Flag, Parameter, Query
from loadmanager.common.cluster_state import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.core.splitting.cutting import can_split
from loadmanager.core.splitting.positions import SPLIT_ALGORITHMS
from loadmanager.leader.term import Leadership, unavailable
from loadmanager.ports.administration import BundleUnknown, SplitRefused
from loadmanager.ports.lookup import Unavailable

_POSITIONS = "specified_positions_divide"


@dataclass(slots=True, eq=False)
class SplitRequests:
    context: Context
    leading: Leadership
    wait_s: float

    async def split(self, namespace: Namespace, chosen: str, order: SplitOrder) -> None:
        """Split a bundle, and return when its parts are in the boundaries of the namespace.

        ``chosen`` is a range (``0xLLLLLLLL_0xUUUUUUUU``), ``LARGEST`` for the bundle with the most
        topics, or ``HOT`` for the one with the most traffic. Raises `LeaderElsewhere`: another
        sidecar leads; `NamespaceUnknown`: there is no such namespace; `BundleUnknown`: it has no
        such bundle, or no broker reports one; `SplitRefused`: the algorithm or its positions do not
        fit, or no broker owns the bundle; `Unavailable`: no sidecar leads, or the bundle was not
        split in time.
        """
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
            raise SplitRefused(f"{bundle} has no owner now; look one of its topics up first")
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


DEFAULT_ALGORITHM: Final = "range_equally_divide"
_MOST_POSITIONS: Final = 1_000

Position = Annotated[int, Field(ge=0, le=FULL_RANGE_END)]
Positions = Annotated[list[Position], Field(max_length=_MOST_POSITIONS)]
_RANGE: Final = PATH_PARAMETERS["bundle"]
_CHOSEN: Final = Parameter(
    {"anyOf": [_RANGE.schema, {"type": "string", "enum": ["LARGEST", "HOT"]}]},
    "The range of a bundle, or `LARGEST` (most topics) or `HOT` (most traffic).",
)


class SplitQuery(Query):
    """How a bundle is split."""

    algorithm: str = Field("", alias="splitAlgorithmName")
    """The algorithm: `range_equally_divide`, `topic_count_equally_divide`,
    `specified_positions_divide` or `flow_or_qps_equally_divide`. By default it is the configured
    one."""
    unload: Flag = False
    """This parameter has no effect, because all parts except the first are always placed again."""
    authoritative: Flag = False
    """This parameter has no effect, because redirects go to the leader."""


class Splits(Resource, tag="bundles"):
    """Answers ``PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split``.

    ``default_algorithm`` is called for each request, because the configuration may change.
    """

    def __init__(
        self,
        split: Callable[[Namespace, str, SplitOrder], Awaitable[None]],
        default_algorithm: Callable[[], str] = lambda: DEFAULT_ALGORITHM,
    ) -> None:
        self._split = split
        self._default_algorithm = default_algorithm

    @operation(
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split",
        Reply(204, "The parts are in the boundaries of the namespace."),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(
            412, "The algorithm or its positions do not fit the bundle, or the bundle has no owner."
        ),
        parameters={"bundle": _CHOSEN},
        leader=True,
    )
    async def split(
        self, namespace: Namespace, bundle: str, query: SplitQuery, body: Positions | None = None
    ) -> None:
        """Split a bundle.

        The body lists the positions for `specified_positions_divide`.
        """
        order = SplitOrder(query.algorithm or self._default_algorithm(), tuple(body or ()))
        await self._split(namespace, bundle, order)
