import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

from pydantic import Field, PlainSerializer

from loadmanager.adapters.http.operations import (
    PATH_PARAMETERS,
    Document,
    Parameter,
    Query,
    Reply,
    Resource,
    operation,
)
from loadmanager.common.cluster_state import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config.strategies import split_rules_of
from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import FULL_RANGE_END
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, parse_broker
from loadmanager.core.load import BundleStats
from loadmanager.core.orders import SplitOrder
from loadmanager.core.splitting.cutting import can_split
from loadmanager.core.splitting.merging import CannotMerge, Merge, cut_again, neighbours
from loadmanager.core.splitting.positions import SPLIT_ALGORITHMS
from loadmanager.leader.term import Leadership, LeaderTerm, unavailable
from loadmanager.ports.lookup import Conflict, Missing, Unavailable, Unfit

_POSITIONS: Final = "specified_positions_divide"
_SPLIT_WAIT_S: Final = 15.0
_MERGE_WAIT_S: Final = 30.0
_UNLOAD_WAIT_S: Final = 15.0
_INACTIVE: Final = "Not allowed unload namespace bundle to inactive destination broker"
_REASONS_SHOWN: Final = 5


class UnloadedBundle(Document):
    """The result of an unload."""

    bundle: BundleId
    source: BrokerId | None
    """The former owner; null if the bundle had none."""
    target: BrokerId | None
    """The present owner; null if the bundle has none, or was split meanwhile."""
    took_s: Annotated[float, PlainSerializer(lambda took_s: round(took_s, 4), float)]
    """The seconds from the order until the new owner served the bundle."""


Unload = Callable[[Namespace, str | None, BrokerId | None], Awaitable[Sequence[UnloadedBundle]]]
"""`BundleRequests.unload`."""


@dataclass(slots=True, eq=False)
class BundleRequests:
    """Moves, splits and merges bundles on request, on the leader only.

    A destination is refused if its report is older than the filters of the planner allow; the
    bundles of one unload that move at once are limited as those of one broker. All methods raise
    `LeaderElsewhere`: another sidecar leads; `NamespaceUnknown`: there is no such namespace;
    `Missing`: it has no such bundle; `Unavailable`: no sidecar leads, or it was not done in
    time.
    """

    context: Context
    leading: Leadership
    settings: RuntimeSettings

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> Sequence[UnloadedBundle]:
        """Move one bundle of a namespace, or with None all, to other brokers.

        Returns when the next owners serve them, with the owners of each. A bundle without an
        owner, or whose owner is the destination, is left alone. Without a ``destination`` each
        moves to the best broker other than its owner; with one, it moves there whatever the load.

        Raises `Conflict`: the destination is not registered, is draining, or does not report;
        `Unavailable`, too: no other broker can take the bundle, which is then not interrupted.
        """
        self.leading.require_term()
        boundaries = await boundaries_of(self.context.cluster_state, namespace)
        whole = range_text is None
        bundles = boundaries.bundles if whole else (bundle_in(boundaries, range_text or ""),)
        staying: dict[BundleId, str] = {}
        unloaded: list[UnloadedBundle] = []
        most = self.settings.now.task_bounds.most_per_broker
        for first in range(0, len(bundles), most):
            if destination is not None:
                self._check(destination)
            batch = bundles[first : first + most]
            staying |= await self._unload(batch, destination, unloaded)
        if staying:
            raise Unavailable(_summary(staying))
        return unloaded

    def _check(self, destination: BrokerId) -> None:
        known = self.context.cluster_state.brokers.get(destination)
        if known is None:
            raise Conflict(f"{_INACTIVE}: {destination} is not registered")
        if not known.registration.takes:
            what = "draining" if known.registration.draining else "cordoned"
            raise Conflict(f"{_INACTIVE}: {destination} is {what}")
        loads = self.context.cluster_state.loads.reports.get(destination)
        if loads is None:
            raise Conflict(f"{_INACTIVE}: {destination} has published no loads")
        age_s = self.context.clock.monotonic_s() - loads.seen_at_s
        oldest_s = self.settings.now.planner.filters.max_report_age_s
        if age_s > oldest_s:
            raise Conflict(
                f"{_INACTIVE}: {destination} last reported {age_s:.0f} s ago; "
                f"expected at most {oldest_s:g} s"
            )

    async def _unload(
        self,
        bundles: Sequence[BundleId],
        destination: BrokerId | None,
        unloaded: list[UnloadedBundle],
    ) -> Mapping[BundleId, str]:
        leader_term, began_s = self.leading.require_term(), self.context.clock.monotonic_s()
        with unavailable("the orders that stand are not known"):
            await leader_term.tasks.confirm()
        owners: dict[BundleId, BrokerId] = {}
        leaving: dict[BundleId, BrokerId] = {}
        for bundle in bundles:
            holding = self.context.cluster_state.live_owner(bundle)
            planned = leader_term.placement_worker.planned(bundle)
            # A bundle that is being placed counts as owned by its first owner.
            owner = holding.broker if holding else planned
            if owner is None:
                nowhere = UnloadedBundle(bundle=bundle, source=None, target=None, took_s=0.0)
                unloaded.append(nowhere)
                continue
            owners[bundle] = owner
            if destination != (planned or owner) if destination else planned in {None, owner}:
                leaving[bundle] = owner
        with unavailable("the order to unload was not written"):
            staying = await leader_term.order_unload(leaving, destination) if leaving else {}
        moving = {bundle: owner for bundle, owner in owners.items() if bundle not in staying}
        unloaded.extend(await self._until_arrived(moving, destination, began_s))
        return staying

    async def _until_arrived(
        self, moving: Mapping[BundleId, BrokerId], destination: BrokerId | None, began_s: float
    ) -> Sequence[UnloadedBundle]:
        cluster_state, clock = self.context.cluster_state, self.context.clock
        arrived: list[UnloadedBundle] = []
        waiting = dict(moving)

        def all_arrived() -> bool:
            for bundle, source in list(waiting.items()):
                holding = cluster_state.serving_owner(bundle)
                owner = holding.broker if holding else None
                boundaries = cluster_state.known_boundaries(namespace_of(bundle))
                cut = boundaries is not None and bundle not in boundaries
                if cut or (owner and (owner == destination if destination else owner != source)):
                    del waiting[bundle]
                    took_s, target = clock.monotonic_s() - began_s, None if cut else owner
                    arrived.append(
                        UnloadedBundle(bundle=bundle, source=source, target=target, took_s=took_s)
                    )
            return not waiting

        if not await cluster_state.changes.until(all_arrived, clock, _UNLOAD_WAIT_S):
            where = f" at {destination}" if destination else " elsewhere"
            first = next(iter(waiting))
            raise Unavailable(f"{first} did not arrive{where} within {_UNLOAD_WAIT_S:g} s")
        return arrived

    async def split(self, namespace: Namespace, chosen: str, order: SplitOrder) -> None:
        """Split a bundle, and return when its parts are in the boundaries of the namespace.

        ``chosen`` is a range (``0xLLLLLLLL_0xUUUUUUUU``), ``LARGEST`` for the bundle with the most
        topics, or ``HOT`` for the one with the most traffic. Raises `Missing`, too: no broker
        reports one; `Unfit`: the algorithm or its positions do not fit, or no broker owns
        the bundle.
        """
        if order.algorithm not in SPLIT_ALGORITHMS:
            known = ", ".join(sorted(SPLIT_ALGORITHMS))
            raise Unfit(f"split algorithm {order.algorithm!r}; expected one of {known}")
        if order.algorithm == _POSITIONS and not order.positions:
            raise Unfit(f"{_POSITIONS} needs positions, a JSON array of numbers, as body")
        leader_term = self.leading.require_term()
        boundaries = await boundaries_of(self.context.cluster_state, namespace)
        if chosen in {"LARGEST", "HOT"}:
            bundle = self._heaviest(boundaries, by_topics=chosen == "LARGEST")
        else:
            bundle = bundle_in(boundaries, chosen)
        if not can_split(bundle):
            raise Unfit(f"{bundle} holds a single position and cannot be cut")
        if self.context.cluster_state.live_owner(bundle) is None:
            raise Unfit(f"{bundle} has no owner now; look one of its topics up first")
        what = f"the order to split {bundle}"
        with unavailable(f"{what} was not written"):
            await leader_term.splits.order(bundle, order)
        check = partial(leader_term.splits.check_ordered, [bundle], what)
        if not await self._until(
            leader_term, namespace, lambda now: bundle not in now, check, _SPLIT_WAIT_S
        ):
            raise Unavailable(
                f"{bundle} was not cut within {_SPLIT_WAIT_S:g} s; its broker's sidecar logs why"
            )

    async def merge(self, namespace: Namespace, range_text: str, other: str | None) -> BundleId:
        """Merge two bundles, and return the result when it is in the boundaries of the namespace.

        ``other`` is the range of the second bundle, None for the one above. Raises `Unfit`:
        they are not adjacent, no broker owns one of them, the result would be split again at once,
        or neither owner may have both; `Conflict`: one of them is being split, merged or moved.
        Bundles that were not merged in time stay as they were.
        """
        leader_term = self.leading.require_term()
        both = _chosen(
            await boundaries_of(self.context.cluster_state, namespace), range_text, other
        )
        config = self.settings.now.config
        rules = split_rules_of(config.split, config.planner)
        excess = cut_again(rules, *(self._reported(half) for half in both.halves))
        if config.split.enabled and excess:
            raise Unfit(f"{both.whole} would be cut again at once: it has {excess}")
        hotter = max(both.halves, key=lambda half: self._reported(half).bytes_per_s)
        what = f"the order to merge {both.whole}"
        with unavailable(f"{what} was not written"):
            await leader_term.splits.merge(both, hotter)
        why = ": a half was moved, split or deleted"
        check = partial(leader_term.splits.check_ordered, both.halves, what, why)
        if not await self._until(
            leader_term, namespace, lambda now: both.whole in now, check, _MERGE_WAIT_S
        ):
            raise Unavailable(
                f"{both.lower} and {both.upper} were not merged within {_MERGE_WAIT_S:g} s; "
                "the sidecar of their broker logs why"
            )
        return both.whole

    async def _until(
        self,
        leader_term: LeaderTerm,
        namespace: Namespace,
        is_made: Callable[[Boundaries], bool],
        check: Callable[[], None],
        wait_s: float,
    ) -> bool:
        """Return whether the boundaries are as ordered in time; ``check`` raises if they cannot."""
        cluster_state = self.context.cluster_state

        def made() -> bool:
            boundaries = cluster_state.known_boundaries(namespace)
            if boundaries is not None and is_made(boundaries):
                return True
            if self.leading.leader_term is leader_term:
                check()
            return False

        return await cluster_state.changes.until(made, self.context.clock, wait_s)

    def _heaviest(self, boundaries: Boundaries, *, by_topics: bool) -> BundleId:
        reported = {
            bundle: stats.topics if by_topics else stats.bytes_per_s
            for known in self.context.cluster_state.loads.reports.values()
            for bundle, stats in known.report.bundles.items()
            if bundle in boundaries
        }
        if not reported:
            raise Missing(f"no broker reports a bundle of {boundaries.namespace}")
        return max(reported, key=lambda bundle: (reported[bundle], bundle))

    def _reported(self, half: BundleId) -> BundleStats:
        holding = self.context.cluster_state.live_owner(half)
        known = holding and self.context.cluster_state.loads.reports.get(holding.broker)
        return known.report.bundles.get(half, BundleStats()) if known else BundleStats()


def _summary(staying: Mapping[BundleId, str]) -> str:
    some = list(staying.items())[:_REASONS_SHOWN]
    more = f"; and {len(staying) - len(some)} more" if len(staying) > len(some) else ""
    text = "; ".join(f"no other broker can take {bundle} ({why})" for bundle, why in some)
    return f"{text}{more}"


def _chosen(boundaries: Boundaries, range_text: str, other: str | None) -> Merge:
    one = bundle_in(boundaries, range_text)
    after = boundaries.bundles.index(one) + 1
    if other is None and after == len(boundaries.bundles):
        raise Unfit(f"{one} is the last bundle of {boundaries.namespace}")
    second = boundaries.bundles[after] if other is None else bundle_in(boundaries, other)
    try:
        return neighbours(boundaries, one, second)
    except CannotMerge as error:
        raise Unfit(str(error)) from error


class UnloadQuery(Query):
    """How one bundle is unloaded."""

    destination: str = Field("", alias="destinationBroker")
    """The broker that is to own the bundle: its id, `host:port`, or the URL of its web service.
    Isolation, anti-affinity and load are then ignored."""


class Unloads(Resource, tag="bundles"):
    """Answers ``PUT /admin/v2/namespaces/{tenant}/{namespace}[/{bundle}]/unload``.

    The same path below ``/admin/v2/loadmanager`` returns the new owner.
    """

    def __init__(self, unload: Unload) -> None:
        self._unload = unload

    @operation(
        "PUT /admin/v2/namespaces/{tenant}/{namespace}/unload",
        Reply(204, "The next owners serve the bundles; bundles without an owner were left alone."),
        Reply(404, "The namespace does not exist."),
        leader=True,
    )
    async def unload_all(self, namespace: Namespace) -> None:
        """Move all bundles of a namespace to other brokers, a few at a time."""
        await self._unload(namespace, None, None)

    @operation(
        "PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload",
        Reply(204, "The next owner serves the bundle, or the bundle had no owner."),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "The destination is not registered, is draining, or does not report."),
        leader=True,
    )
    async def unload(self, namespace: Namespace, bundle: str, query: UnloadQuery) -> None:
        """Move one bundle to another broker.

        Without a destination, the bundle moves to the best broker other than its owner.
        """
        await self._unload(namespace, bundle, _destination(query.destination))

    @operation(
        "PUT /admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/unload",
        Reply(200, "The next owner serves the bundle, or the bundle has no owner.", UnloadedBundle),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "The destination is not registered, is draining, or does not report."),
        leader=True,
    )
    async def unload_and_report(
        self, namespace: Namespace, bundle: str, query: UnloadQuery
    ) -> UnloadedBundle:
        """Move one bundle to another broker, and return where it went."""
        (one,) = await self._unload(namespace, bundle, _destination(query.destination))
        return one


def _destination(text: str) -> BrokerId | None:
    """Return the broker named by its id or by its web service's URL, None for no name."""
    name = text.strip()
    url = re.fullmatch(r"(?i:https?://)(.*)", name.rstrip("/"))
    return parse_broker(url[1] if url else name) if name else None


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


class MergeQuery(Query):
    """The neighbour with which a bundle is merged."""

    neighbour: str = Field("", alias="with")
    """The range of the adjacent bundle above or below; by default the one above."""


class MergedBundle(Document):
    """The bundle that results from a merge."""

    bundle: str
    """The range of the bundle."""


class Splits(Resource, tag="bundles"):
    """``default_algorithm`` is called for each request: the configuration may change."""

    def __init__(
        self,
        split: Callable[[Namespace, str, SplitOrder], Awaitable[None]],
        merge: Callable[[Namespace, str, str | None], Awaitable[BundleId]],
        default_algorithm: Callable[[], str],
    ) -> None:
        self._split = split
        self._merge = merge
        self._default_algorithm = default_algorithm

    @operation(
        "PUT /admin/v2/namespaces/{tenant}/{namespace}/{bundle}/split",
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

    @operation(
        "PUT /admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/merge",
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
