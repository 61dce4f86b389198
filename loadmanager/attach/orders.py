"""Orders of a term that Pulsar's brokers carry out, sent to their admin REST API.

Pulsar keeps ownership: a bundle without an order stays where it is, and an order stands in
memory until the new owner of its bundle is known. The orders of a former leader were requests,
so there are no stored orders to read, and no other process can change them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field
from time import monotonic
from typing import Final, Protocol

from loadmanager.adapters.pulsar_admin import PulsarAdmin, RightMissing
from loadmanager.adapters.pulsar_admin.move_order import Move, Outcome, OutcomeState
from loadmanager.adapters.pulsar_admin.moves import BundleMover, split_bundle
from loadmanager.adapters.pulsar_admin.ownership import BrokerQueries
from loadmanager.attach.mandate import Mandate
from loadmanager.common.cluster_state import OwnerView
from loadmanager.core.bundle_task import TaskEvent
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, TopicName
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.core.splitting.cutting import even_cuts, parts_at
from loadmanager.ports.coordination import Disconnected, SetData
from loadmanager.ports.orders import Reported

CUT_AT: Final = "specified_positions_divide"
CUT_EVENLY: Final = "range_equally_divide"
_EVENTS: Final[Mapping[OutcomeState, TaskEvent]] = {
    "serving": TaskEvent.DONE,
    "failed": TaskEvent.GAVE_UP,
    "superseded": TaskEvent.REPLACED,
    "timed_out": TaskEvent.EXPIRED,
    "landed_elsewhere": TaskEvent.SERVED_ELSEWHERE,
    "stuck": TaskEvent.STUCK,
    "owned_not_served": TaskEvent.NOT_SERVED,
}


CutOf = Callable[[BundleId, SplitOrder, BrokerId], Awaitable[int | None]]

UNFINISHED_S: Final = 60.0
"""Time without splits after a split whose parts did not appear."""


async def ordered_cut(bundle: BundleId, split: SplitOrder, _broker: BrokerId) -> int | None:
    positions = even_cuts(bundle, 2) if split.algorithm == CUT_EVENLY else split.positions
    known = split.algorithm in {CUT_EVENLY, CUT_AT} and len(positions) == 1
    return positions[0] if known else None


class FoundOwners(OwnerView, Protocol):
    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None: ...


class _Lapsed(LoadManagerError):
    """An order must not be sent any more."""


@dataclass(frozen=True, slots=True)
class _Order:
    target: BrokerId
    split: SplitOrder | None


class _Assigned(Mapping[BundleId, BrokerId]):
    """The target of each bundle with an order under way, and the owner of each other bundle."""

    def __init__(self, under_way: Mapping[BundleId, _Order], owners: OwnerView) -> None:
        self._under_way = under_way
        self._owners = owners

    def __getitem__(self, bundle: BundleId) -> BrokerId:
        order = self._under_way.get(bundle)
        if order is not None:
            return order.target
        owner = self._owners.listed_owner(bundle)
        if owner is None or owner not in self._owners.brokers:
            raise KeyError(bundle)
        return owner

    def __iter__(self) -> Iterator[BundleId]:
        yield from self._under_way
        for bundle, holding in self._owners.owners.items():
            if bundle not in self._under_way and holding.broker in self._owners.brokers:
                yield bundle

    def __len__(self) -> int:
        return sum(1 for _ in self)


@dataclass(slots=True)
class PulsarOrders:
    """The `StandingOrders` of one term, carried out through the admin REST API.

    ``claims`` is whether moves need the claim, as with the modular load manager; ``topic_of``
    returns a topic of a bundle for it, and ``name_in`` the name of one to claim a bundle that no
    broker serves (None leaves such bundles to Pulsar). A ``disputed`` bundle, which has a reason,
    is left alone. ``failed`` is called with errors that do not
    concern one bundle alone: a missing permission, or a defect of this program. ``active_topics``
    are those by which it is seen whether the target serves a bundle, and ``sent`` is called with
    each unload and split. Pulsar did not split the bundles in ``uncut`` when ordered to.
    """

    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    cluster: str
    _: KW_ONLY
    claims: bool
    owners: FoundOwners
    topic_of: Callable[[BundleId], Awaitable[TopicName | None]]
    mandate: Mandate
    failed: Callable[[Exception], None]
    cut_of: CutOf = ordered_cut
    name_in: Callable[[BundleId], TopicName | None] = lambda _: None
    disputed: Callable[[BundleId], str] = lambda _: ""
    active_topics: Callable[[BundleId], tuple[TopicName, ...]] = lambda _: ()
    sent: Callable[[BundleId], None] = lambda _: None
    uncut: set[BundleId] = field(default_factory=set)
    assigned: Mapping[BundleId, BrokerId] = field(init=False)
    known: bool = True
    _mover: BundleMover = field(init=False)
    _splitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unfinished_until_s: float = float("-inf")
    _parts: dict[BundleId, tuple[BundleId, ...]] = field(default_factory=dict)
    _under_way: dict[BundleId, _Order] = field(default_factory=dict)
    _working: dict[BundleId, asyncio.Task[None]] = field(default_factory=dict)
    _closed: bool = False
    _reported: Reported = lambda *_: None

    def __post_init__(self) -> None:
        self.assigned = _Assigned(self._under_way, self.owners)
        brokers = BrokerQueries(self.admin, self.address, self.cluster, lambda: self.owners.brokers)
        self._mover = BundleMover(brokers, self.claims)

    @property
    def waiting(self) -> int:
        return len(self._mover.waiting)

    @property
    def stuck(self) -> Mapping[BundleId, Move]:
        """The moves whose sources have not released the bundle, and still may."""
        return self._mover.stuck

    @property
    def splits(self) -> Mapping[BundleId, SplitOrder]:
        return {b: one.split for b, one in self._under_way.items() if one.split is not None}

    def follow(self, reported: Reported) -> None:
        """Call ``reported`` at the end of each order, and at each attempt but the first."""
        self._reported = reported

    async def read(self) -> None: ...

    async def rewrite_changed(self) -> tuple[BrokerId, ...]:
        """Return no brokers: no other process changes orders."""
        return ()

    async def write(self, changes: OrderChanges, _rider: SetData | None = None) -> bool:
        """Begin to carry out orders; return False: without nodes, no rider can be written.

        Raises:
            Deposed: another candidate was elected.
            Disconnected: it is uncertain whether this process may send orders; none is begun.
        """
        if not changes:
            return False
        if why := await self.mandate.confirm():
            raise Disconnected(why)
        taken_back = [bundle for bundle, split in changes.splits.items() if split is None]
        for bundle in (*changes.gone, *taken_back):
            self._under_way.pop(bundle, None)
        for bundle, target in changes.assigned.items():
            order = _Order(target, changes.splits.get(bundle))
            if self._under_way.get(bundle) == order:
                continue
            stays = order.split is None and self.owners.listed_owner(bundle) == target
            if not stays or bundle in self._working:
                self._under_way[bundle] = order
                self._begin(bundle, order)
        return False

    def close(self) -> None:
        """End the term: nothing more is sent; orders that were sent are followed to their end."""
        self._closed = True
        self._mover.close()

    async def settled(self) -> None:
        while self._working:
            await asyncio.wait(self._working.values())

    def _begin(self, bundle: BundleId, order: _Order) -> None:
        work = self._carry_out(bundle, order, self._working.get(bundle))
        self._working[bundle] = task = asyncio.create_task(work, name=f"order {bundle}")

        def done(_: asyncio.Task[None]) -> None:
            if self._working.get(bundle) is task:
                del self._working[bundle]

        task.add_done_callback(done)

    async def _carry_out(
        self, bundle: BundleId, order: _Order, former: asyncio.Task[None] | None
    ) -> None:
        if former is not None:
            await asyncio.wait({former})  # The owner is not known before.
        try:
            outcome = await self._outcome(bundle, order)
        except _Lapsed as error:
            outcome = Outcome(state="superseded", reason=str(error))
        except Exception as error:  # noqa: BLE001 - each task comes to an end with its reason
            outcome = Outcome(state="failed", reason=str(error))
            if isinstance(error, RightMissing) or not isinstance(error, LoadManagerError):
                self.failed(error)
        if self._under_way.get(bundle) is order:
            del self._under_way[bundle]
            self._reported(bundle, _EVENTS[outcome.state], outcome.reason, outcome.pause)
        parts = self._parts.pop(bundle, None)
        if parts is not None:
            self.owners.found({bundle: None, **dict.fromkeys(parts, outcome.owner)})
        elif outcome.owner is not None:
            self.owners.found({bundle: outcome.owner})

    async def _outcome(self, bundle: BundleId, order: _Order) -> Outcome:
        if why := self.disputed(bundle):
            return Outcome(state="superseded", reason=why)
        source = self.owners.listed_owner(bundle)
        if order.split is None and source == order.target:
            return Outcome(state="serving", owner=source)
        sent = 0

        def ordered() -> None:
            nonlocal sent
            why = "the term ended" if self._closed else self.mandate.lapsed()
            if why:
                raise _Lapsed(why)
            if self._under_way.get(bundle) is not order:
                raise _Lapsed("its order was withdrawn")
            sent += 1
            if sent > 1:
                self._reported(bundle, TaskEvent.REPEATED, "", None)

        if source is None:
            places = order.split is None and self.claims
            topic = self.name_in(bundle) if places else None
            if topic is None:
                return Outcome(state="superseded", reason="no broker is seen to serve it")
            return await self._mover.place(bundle, order.target, topic, ordered)
        if order.split is not None:
            return await self._split(bundle, order.split, source, ordered)
        topic = await self.topic_of(bundle)
        move = Move(
            bundle=bundle,
            source=source,
            target=order.target,
            topic=topic,
            active=self.active_topics(bundle),
        )
        return await self._mover.move(move, ordered, lambda: self.sent(bundle))

    async def _split(
        self, bundle: BundleId, split: SplitOrder, broker: BrokerId, ordered: Callable[[], None]
    ) -> Outcome:
        """Split a bundle at its owner.

        Splits are made one at a time, and none begins for `UNFINISHED_S` after a split that did
        not finish: two concurrent splits of a namespace write the same node, and a modular
        4.0.7 broker that loses that race may stop answering every request that needs metadata.
        """
        async with self._splitting:
            if monotonic() < self._unfinished_until_s:
                why = "a split before it is not finished"
                return Outcome(state="superseded", reason=why, owner=broker)
            cut = await self.cut_of(bundle, split, broker)
            if cut is None:
                why = f"{split.algorithm}: Pulsar is asked for one cut, with topics on both sides"
                return Outcome(state="failed", reason=why, owner=broker)

            def begun() -> None:
                ordered()
                self.sent(bundle)

            outcome = await split_bundle(self._mover.brokers, broker, bundle, cut, begun)
        if outcome.state == "timed_out":
            self._unfinished_until_s = monotonic() + UNFINISHED_S
        if outcome.attempts and outcome.state != "serving":
            # A retry fails, too: the version cannot split so, or the namespace does not allow it.
            self.uncut.add(bundle)
        elif outcome.state == "serving":
            self._parts[bundle] = parts_at(bundle, cut)
        return outcome
