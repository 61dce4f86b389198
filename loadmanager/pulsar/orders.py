"""Orders of a term that Pulsar's brokers carry out, sent to their admin REST API.

Pulsar keeps ownership: a bundle without an order stays where it is, and an order stands in
memory until the new owner of its bundle is known. The orders of a former leader were requests,
so there are no stored orders to read, and no other process can change them.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from itertools import chain, islice
from time import monotonic
from typing import Final, NamedTuple, Protocol

from loadmanager.common.cluster_state import Holding, OwnerView
from loadmanager.common.watching import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.bundle_task import TaskEvent
from loadmanager.core.bundle_traffic import CHANGE_EVENTS, NO_TRAFFIC, BundleTraffic, topics_in
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, TopicName, namespace_of, parse_full_topic
from loadmanager.core.orders import OrderChanges, SplitOrder
from loadmanager.core.splitting.cutting import even_cuts, parts_at
from loadmanager.leader.election import Deposed, Term
from loadmanager.leader.task_controller import Reported
from loadmanager.ports.coordination import (
    Check,
    CommitRejected,
    Connection,
    CoordinationError,
    Disconnected,
    NodeMissing,
    SetData,
)
from loadmanager.ports.session import Coordination
from loadmanager.pulsar.client import RightMissing
from loadmanager.pulsar.moves import (
    CUT_AT,
    BrokerQueries,
    BundleMover,
    Outcome,
    Unload,
    split_bundle,
)
from loadmanager.pulsar.sampling import Samples

_MOST_NAMES: Final = 100_000
_MOST_COORDINATORS: Final = 64


def holds_policies(bundle: BundleId) -> bool:
    """Return whether a bundle contains the topic of its namespace's policies.

    A modular broker that begins to serve another bundle of the namespace looks that topic up,
    which makes Pulsar's leader place it if no broker serves its bundle.
    """
    return _topic_in(bundle, [CHANGE_EVENTS]) is not None


def name_in(bundle: BundleId) -> TopicName | None:
    """Return the name of a topic whose hash is in a bundle; its lookup creates no topic."""
    # These exist, which some brokers require of what they look up.
    name = "transaction_coordinator_assign-partition"
    coordinators = (f"{name}-{number}" for number in range(_MOST_COORDINATORS))
    others = (f"loadmanager-{number}" for number in range(_MOST_NAMES))
    system = namespace_of(bundle) == "pulsar/system"
    return _topic_in(bundle, chain(coordinators if system else (), others))


def _topic_in(bundle: BundleId, local_names: Iterable[str]) -> TopicName | None:
    names = (f"persistent://{namespace_of(bundle)}/{local}" for local in local_names)
    return next((topic for _, topic, _ in topics_in(bundle, names)), None)


class Mandate:
    """Whether a controller may act: this one may, as the only one of its state folder."""

    @property
    def epoch(self) -> int:
        return 0

    def lapsed(self) -> str:
        return ""

    async def confirm(self) -> str:
        """Return as `lapsed`, after a request to ZooKeeper with elections. Raises `Deposed`."""
        return self.lapsed()

    async def hands_over(self) -> bool:
        """Return whether another controller takes over, so that Pulsar's balancer stays off."""
        return False


@dataclass(frozen=True, slots=True)
class Elected(Mandate):
    term: Term
    coordination: Coordination
    name: str

    @property
    def epoch(self) -> int:
        return self.term.epoch

    def lapsed(self) -> str:
        session = self.coordination.session
        if session.session_id != self.term.session_id:
            return "its session with ZooKeeper has ended"
        if session.connection is not Connection.CONNECTED:
            return "ZooKeeper does not answer"
        return ""

    async def confirm(self) -> str:
        """Have ZooKeeper confirm that no later term began."""
        if why := self.lapsed():
            return why
        try:
            await self.coordination.commit([Check(znodes.EPOCH, self.term.epoch)])
        except CommitRejected as error:
            raise Deposed(f"term {self.term.epoch} is over: {error}") from None
        except CoordinationError as error:
            return f"ZooKeeper does not confirm that term {self.term.epoch} lasts: {error}"
        return ""

    async def hands_over(self) -> bool:
        """Withdraw; return whether the term is already lost, or other candidates are listed.

        If several end at the same time, the last one to remove itself finds the list empty.
        """
        try:
            if await self.confirm():
                return True
            with suppress(NodeMissing):
                await self.coordination.delete(f"{znodes.ATTACH_CANDIDATES}/{self.name}")
            await self.coordination.sync(znodes.ATTACH_CANDIDATES)
            return bool(await self.coordination.children(znodes.ATTACH_CANDIDATES))
        except (Deposed, CoordinationError):
            return True


CUT_EVENLY: Final = "range_equally_divide"
CutOf = Callable[[BundleId, SplitOrder, BrokerId], Awaitable[int | None]]
UNFINISHED_S: Final = 60.0  # Time without splits after a split whose parts did not appear.


async def ordered_cut(bundle: BundleId, split: SplitOrder, _broker: BrokerId) -> int | None:
    positions = even_cuts(bundle, 2) if split.algorithm == CUT_EVENLY else split.positions
    known = split.algorithm in {CUT_EVENLY, CUT_AT} and len(positions) == 1
    return positions[0] if known else None


class FoundOwners(OwnerView, Protocol):
    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None: ...


class _Lapsed(LoadManagerError):
    """An order must not be sent any more."""


class _Order(NamedTuple):
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


@dataclass
class PulsarOrders:
    """The `StandingOrders` of one term, carried out through the admin REST API.

    ``topic_of`` returns a topic of a bundle to claim it, and ``name_in`` the name of one to claim a
    bundle that no broker serves. A ``disputed`` bundle is left alone. ``failed`` is called with
    errors that do not concern one bundle alone, and ``sent`` with each unload and split. Pulsar did
    not split the bundles in ``unsplittable`` when ordered to.
    """

    brokers: BrokerQueries
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
    unsplittable: set[BundleId] = field(default_factory=set)
    known: bool = True
    _splitting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _unfinished_until_s: float = float("-inf")
    _parts: dict[BundleId, tuple[BundleId, ...]] = field(default_factory=dict)
    _under_way: dict[BundleId, _Order] = field(default_factory=dict)
    _working: dict[BundleId, asyncio.Task[None]] = field(default_factory=dict)
    _closed: bool = False
    _reported: Reported = lambda *_: None

    def __post_init__(self) -> None:
        self.assigned = _Assigned(self._under_way, self.owners)
        self._mover = BundleMover(self.brokers, self.claims)

    @property
    def waiting(self) -> int:
        return len(self._mover.waiting)

    @property
    def stuck(self) -> Mapping[BundleId, Unload]:
        return self._mover.stuck

    @property
    def splits(self) -> Mapping[BundleId, SplitOrder]:
        return {b: one.split for b, one in self._under_way.items() if one.split is not None}

    def follow(self, reported: Reported) -> None:
        self._reported = reported

    async def read(self) -> None: ...

    async def rewrite_changed(self) -> tuple[BrokerId, ...]:
        return ()  # No other process changes orders.

    async def write(self, changes: OrderChanges, _rider: SetData | None = None) -> bool:
        """Begin to carry out orders; return False: there is no node to write beside."""
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
        self._mover.over.set()

    async def settled(self) -> None:
        while self._working:
            await asyncio.wait(self._working.values())

    def _begin(self, bundle: BundleId, order: _Order) -> None:
        work = self._carry_out(bundle, order, self._working.get(bundle))
        self._working[bundle] = task = asyncio.create_task(work, name=f"order {bundle}")
        task.add_done_callback(partial(self._done, bundle))

    def _done(self, bundle: BundleId, task: asyncio.Task[None]) -> None:
        if self._working.get(bundle) is task:
            del self._working[bundle]

    async def _carry_out(
        self, bundle: BundleId, order: _Order, former: asyncio.Task[None] | None
    ) -> None:
        if former is not None:
            await asyncio.wait({former})  # The owner is not known before.
        try:
            outcome = await self._outcome(bundle, order)
        except _Lapsed as error:
            outcome = Outcome(event=TaskEvent.REPLACED, reason=str(error))
        except Exception as error:  # noqa: BLE001 - each task comes to an end with its reason
            outcome = Outcome(event=TaskEvent.GAVE_UP, reason=str(error))
            if isinstance(error, RightMissing) or not isinstance(error, LoadManagerError):
                self.failed(error)
        if self._under_way.get(bundle) is order:
            del self._under_way[bundle]
            self._reported(bundle, outcome.event, outcome.reason, outcome.pause)
        parts = self._parts.pop(bundle, None)
        if parts is not None:
            self.owners.found({bundle: None, **dict.fromkeys(parts, outcome.owner)})
        elif outcome.owner is not None:
            self.owners.found({bundle: outcome.owner})

    async def _outcome(self, bundle: BundleId, order: _Order) -> Outcome:
        if why := self.disputed(bundle):
            return Outcome(event=TaskEvent.REPLACED, reason=why)
        source = self.owners.listed_owner(bundle)
        if order.split is None and source == order.target:
            return Outcome(event=TaskEvent.DONE, owner=source)
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
                return Outcome(event=TaskEvent.REPLACED, reason="no broker is seen to serve it")
            return await self._mover.place(bundle, order.target, topic, ordered)
        if order.split is not None:
            return await self._split(bundle, order.split, source, ordered)
        topic, active = await self.topic_of(bundle), self.active_topics(bundle)
        move = Unload(bundle=bundle, source=source, target=order.target, topic=topic, active=active)
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
                return Outcome(event=TaskEvent.REPLACED, reason=why, owner=broker)
            cut = await self.cut_of(bundle, split, broker)
            if cut is None:
                why = f"{split.algorithm}: Pulsar is asked for one cut, with topics on both sides"
                return Outcome(event=TaskEvent.GAVE_UP, reason=why, owner=broker)

            def begun() -> None:
                ordered()
                self.sent(bundle)

            outcome = await split_bundle(self.brokers, broker, bundle, cut, begun)
        if outcome.event is TaskEvent.EXPIRED:
            self._unfinished_until_s = monotonic() + UNFINISHED_S
        if outcome.attempts and outcome.event is not TaskEvent.DONE:
            # A retry fails, too: the version cannot split so, or the namespace does not allow it.
            self.unsplittable.add(bundle)
        elif outcome.event is TaskEvent.DONE:
            self._parts[bundle] = parts_at(bundle, cut)
        return outcome


# Windows in each of which a topic has to have traffic, to be followed through a move.
ACTIVE_WINDOWS: Final = 3
MOST_WATCHED: Final = 3


class SampledOwners:
    """The owners of bundles by the last samples, updated as moves and splits end."""

    def __init__(self) -> None:
        self.brokers: Collection[BrokerId] = ()
        self.owners: dict[BundleId, Holding] = {}
        self.owner_changes = Subscriptions()
        self._traffic: dict[BundleId, BundleTraffic] = {}
        self._windows: deque[Samples] = deque(maxlen=ACTIVE_WINDOWS)

    def sampled(self, brokers: Collection[BrokerId], samples: Samples) -> None:
        self.brokers, self.owners, self._traffic = brokers, {}, {}
        for broker, sample in samples.items():
            for bundle, traffic in sample.bundles.items():
                self.owners[bundle] = Holding(broker, 0)
                self._traffic[bundle] = traffic
        self.owner_changes.notify()

    def window(self, samples: Samples) -> None:
        self._windows.append(samples)

    def active_topics(self, bundle: BundleId) -> tuple[TopicName, ...]:
        """Return up to `MOST_WATCHED` topics with traffic at their broker in each last window.

        If there are none, it is the topic of the bundle that others need to be loaded, if any.
        Segments are left out, because brokers do not say what a single one has counted.
        """
        owner, needed = self.listed_owner(bundle), self._traffic.get(bundle, NO_TRAFFIC).needed
        seen = [one[owner].topics for one in self._windows if owner is not None and owner in one]
        within = f"://{namespace_of(bundle)}/"
        names = (
            name
            for name in (seen[-1] if len(seen) == ACTIVE_WINDOWS else ())
            if within in name
            and not name.startswith("segment://")
            and all(name in one and one[name].msgs_per_s > 0 for one in seen)
        )
        found = tuple(topic for _, topic, _ in islice(topics_in(bundle, names), MOST_WATCHED))
        return found or ((parse_full_topic(needed),) if needed else ())

    def topics(self, bundle: BundleId) -> int:
        return self._traffic.get(bundle, NO_TRAFFIC).topics

    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None:
        for bundle, broker in owners.items():
            self.owners.pop(bundle, None)
            if broker is not None:
                self.owners[bundle] = Holding(broker, 0)
        self.owner_changes.notify()

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        holding = self.owners.get(bundle)
        return holding.broker if holding else None

    async def topic_of(self, bundle: BundleId) -> TopicName | None:
        traffic = self._traffic.get(bundle, NO_TRAFFIC)
        return parse_full_topic(traffic.topic) if traffic.topic else name_in(bundle)
