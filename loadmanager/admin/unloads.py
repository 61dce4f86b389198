from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field, PlainSerializer

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
from loadmanager.adapters.http.parameters import Flag, Query
from loadmanager.common.cluster_state import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of, parse_broker
from loadmanager.leader.term import Leadership, LeaderTerm, unavailable
from loadmanager.ports.administration import UnloadRefused
from loadmanager.ports.lookup import Unavailable

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
"""`UnloadRequests.unload`."""


@dataclass(slots=True, eq=False)
class UnloadRequests:
    """Moves bundles to other brokers on request, on the leader only.

    Args:
        context: of this sidecar.
        leading: has the leader's term.
        settings: a destination is refused if its report is older than the filters of the planner
            allow; the bundles of one request that move at once are limited as those of one broker.
        wait_s: timeout for these bundles to be served by their next owners.
    """

    context: Context
    leading: Leadership
    settings: RuntimeSettings
    wait_s: float

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> Sequence[UnloadedBundle]:
        """Move one bundle of a namespace, or with None all, to other brokers.

        Returns when the next owners serve them, with the owners of each. A bundle without an
        owner, or whose owner is the destination, is left alone. Without a ``destination`` each
        moves to the best broker other than its owner; with one, it moves there whatever the load.

        Raises:
            LeaderElsewhere: another sidecar leads.
            NamespaceUnknown: the namespace does not exist.
            BundleUnknown: it has no such bundle.
            UnloadRefused: the destination is not registered, is draining, or does not report.
            Unavailable: no sidecar leads; no other broker can take the bundle, which is then
                not interrupted; or it did not arrive in time.
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
            raise UnloadRefused(f"{_INACTIVE}: {destination} is not registered")
        if known.registration.draining:
            raise UnloadRefused(f"{_INACTIVE}: {destination} is draining")
        loads = self.context.cluster_state.loads.reports.get(destination)
        if loads is None:
            raise UnloadRefused(f"{_INACTIVE}: {destination} has published no loads")
        age_s = self.context.clock.monotonic_s() - loads.seen_at_s
        oldest_s = self.settings.now.planner.filters.max_report_age_s
        if age_s > oldest_s:
            raise UnloadRefused(
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
        holdings = {bundle: self.context.cluster_state.live_owner(bundle) for bundle in bundles}
        owners = {bundle: holding.broker for bundle, holding in holdings.items() if holding}
        # A bundle that is being placed counts as owned by its first owner.
        coming = {
            bundle: leader_term.placement_worker.planned(bundle)
            for bundle in bundles
            if bundle not in owners
        }
        owners |= {bundle: planned for bundle, planned in coming.items() if planned is not None}
        leaving = {b: o for b, o in owners.items() if _is_to_leave(leader_term, b, o, destination)}
        with unavailable("the order to unload was not written"):
            staying = await leader_term.order_unload(leaving, destination) if leaving else {}
        moving = {bundle: owner for bundle, owner in owners.items() if bundle not in staying}
        unloaded.extend(
            UnloadedBundle(bundle=bundle, source=None, target=None, took_s=0.0)
            for bundle in bundles
            if bundle not in owners
        )
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
                cut = self._was_cut(bundle)
                if cut or _arrived(owner, source, destination):
                    del waiting[bundle]
                    took_s, target = clock.monotonic_s() - began_s, None if cut else owner
                    arrived.append(
                        UnloadedBundle(bundle=bundle, source=source, target=target, took_s=took_s)
                    )
            return not waiting

        if not await cluster_state.changes.until(all_arrived, clock, self.wait_s):
            where = f" at {destination}" if destination else " elsewhere"
            first = next(iter(waiting))
            raise Unavailable(f"{first} did not arrive{where} within {self.wait_s:g} s")
        return arrived

    def _was_cut(self, bundle: BundleId) -> bool:
        boundaries = self.context.cluster_state.known_boundaries(namespace_of(bundle))
        return boundaries is not None and bundle not in boundaries


def _is_to_leave(
    leader_term: LeaderTerm, bundle: BundleId, owner: BrokerId, destination: BrokerId | None
) -> bool:
    planned = leader_term.placement_worker.planned(bundle)
    if destination is None:
        return planned in {None, owner}
    return destination != (planned or owner)


def _arrived(owner: BrokerId | None, source: BrokerId, destination: BrokerId | None) -> bool:
    return owner is not None and (owner == destination if destination else owner != source)


def _summary(staying: Mapping[BundleId, str]) -> str:
    some = list(staying.items())[:_REASONS_SHOWN]
    more = f"; and {len(staying) - len(some)} more" if len(staying) > len(some) else ""
    text = "; ".join(f"no other broker can take {bundle} ({why})" for bundle, why in some)
    return f"{text}{more}"


_SCHEMES: Final = ("http://", "https://")


class UnloadQuery(Query):
    """How all bundles of a namespace are unloaded."""

    authoritative: Flag = False
    """This parameter has no effect, because redirects go to the leader."""


class BundleUnloadQuery(UnloadQuery):
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
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}/unload",
        Reply(204, "The next owners serve the bundles; bundles without an owner were left alone."),
        Reply(404, "The namespace does not exist."),
        query=UnloadQuery,
        leader=True,
    )
    async def unload_all(self, namespace: Namespace) -> None:
        """Move all bundles of a namespace to other brokers, a few at a time."""
        await self._unload(namespace, None, None)

    @operation(
        "PUT",
        "/admin/v2/namespaces/{tenant}/{namespace}/{bundle}/unload",
        Reply(204, "The next owner serves the bundle, or the bundle had no owner."),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "The destination is not registered, is draining, or does not report."),
        leader=True,
    )
    async def unload(self, namespace: Namespace, bundle: str, query: BundleUnloadQuery) -> None:
        """Move one bundle to another broker.

        Without a destination, the bundle moves to the best broker other than its owner.
        """
        await self._unload(namespace, bundle, _destination(query.destination))

    @operation(
        "PUT",
        "/admin/v2/loadmanager/namespaces/{tenant}/{namespace}/{bundle}/unload",
        Reply(200, "The next owner serves the bundle, or the bundle has no owner.", UnloadedBundle),
        Reply(404, "The namespace does not exist, or has no such bundle."),
        Reply(409, "The destination is not registered, is draining, or does not report."),
        leader=True,
    )
    async def unload_and_report(
        self, namespace: Namespace, bundle: str, query: BundleUnloadQuery
    ) -> UnloadedBundle:
        """Move one bundle to another broker, and return where it went."""
        (one,) = await self._unload(namespace, bundle, _destination(query.destination))
        return one


def _destination(text: str) -> BrokerId | None:
    """Return the broker named by its id or by its web service's URL, None for no name."""
    text = text.strip()
    for scheme in _SCHEMES:
        if text.lower().startswith(scheme):
            return parse_broker(text[len(scheme) :].rstrip("/"))
    return parse_broker(text) if text else None
