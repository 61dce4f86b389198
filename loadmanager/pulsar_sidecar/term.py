import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from time import monotonic
from typing import Final, NamedTuple

import structlog

from loadmanager.adapters.pulsar_admin import Unanswered
from loadmanager.attach.discovery import ClusterReader, PulsarCluster
from loadmanager.attach.mandate import Elected
from loadmanager.attach.observation import topic_loads
from loadmanager.attach.orders import PulsarOrders, ordered_cut
from loadmanager.attach.pulsar_balancer import PulsarBalancer, switched_on
from loadmanager.attach.sampling import LONGEST_REPEATED_S, REPEATED, BrokerSample, Sampler
from loadmanager.attach.state import SharedState
from loadmanager.common.cluster_owners import Holding
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.rate_splits import evenest_cut
from loadmanager.leader.election import Deposed, Term
from loadmanager.ports.host import Clock
from loadmanager.pulsar_sidecar.broker import PulsarBroker
from loadmanager.pulsar_sidecar.importer import Importer

FOUND_FOR_S: Final = 5.0
"""The longest time for which an owner found by a move overrides a list that differs."""


class _Found(NamedTuple):
    broker: BrokerId | None
    listed: Holding | None
    until_s: float


class ObservedOwners:
    """The owners as seen by the task controller of one term.

    An owner that a move found overrides the lists until they change for that bundle, which takes
    about a second. A bundle that its broker lists but never reported is left out: it stays where
    it is (`PulsarBroker.stays`), or its load is not known yet.
    """

    def __init__(self, cluster_state: ClusterState, clock: Clock) -> None:
        self._cluster_state = cluster_state
        self._clock = clock
        self._found: dict[BundleId, _Found] = {}
        self._owners: Mapping[BundleId, Holding] = {}
        self._current = False
        self.owner_changes = Subscriptions()
        cluster_state.changes.subscribe(self._changed)

    def close(self) -> None:
        self._cluster_state.changes.unsubscribe(self._changed)

    @property
    def brokers(self) -> Collection[BrokerId]:
        return self._cluster_state.brokers

    @property
    def owners(self) -> Mapping[BundleId, Holding]:
        if not self._current:
            self._owners, self._current = self._merged(), True
        return self._owners

    def listed_owner(self, bundle: BundleId) -> BrokerId | None:
        holding = self.owners.get(bundle)
        return holding.broker if holding else None

    def disputed(self, bundle: BundleId) -> str:
        """Return why a bundle is left alone: more than one broker lists it. Else ""."""
        listing = self._cluster_state.lists.listing(bundle)
        return f"listed by {' and '.join(listing)}" if len(listing) > 1 else ""

    def found(self, owners: Mapping[BundleId, BrokerId | None]) -> None:
        until_s = self._clock.monotonic_s() + FOUND_FOR_S
        for bundle, broker in owners.items():
            listed = self._cluster_state.owners.get(bundle)
            if (listed.broker if listed else None) != broker:
                self._found[bundle] = _Found(broker, listed, until_s)
        self._changed()

    def _changed(self) -> None:
        self._current = False
        self.owner_changes.notify()

    def _merged(self) -> Mapping[BundleId, Holding]:
        listed, now_s = self._cluster_state.owners, self._clock.monotonic_s()
        seen = {bundle: at for bundle, at in listed.items() if self._moves(bundle, at)}
        for bundle, one in list(self._found.items()):
            if listed.get(bundle) != one.listed or one.until_s <= now_s:
                del self._found[bundle]
            elif one.broker is None:
                seen.pop(bundle, None)
            else:
                seen[bundle] = Holding(one.broker, one.listed.fencing_token if one.listed else 0)
        return seen

    def _moves(self, bundle: BundleId, at: Holding) -> bool:
        known = self._cluster_state.loads.reports.get(at.broker)
        if known is not None and bundle in known.report.bundles:
            return True
        # It has just moved: its new broker reports it within seconds.
        older = known is None or known.mzxid < at.fencing_token
        return older and bundle in self._owners


WINDOW_S: Final = 5.0
"""Window in which the traffic of topics is counted to find a cut."""


async def find_cut(
    broker: PulsarBroker, bundle: BundleId, split: SplitOrder, owner: BrokerId
) -> int | None:
    """Return where to cut a bundle of ``owner``, None if no cut leaves topics on both sides.

    The position is computed here, because several versions of Pulsar answer 500 to a split by the
    algorithm that divides by traffic. Raises `PulsarAdminError`: the owner's topics cannot be read.
    """
    cut = await ordered_cut(bundle, split, owner)
    if cut is not None:
        return cut
    found = await _read(broker, owner)
    traffic = found.bundles.get(bundle)
    if traffic is None:
        return None
    loads = list(topic_loads(found, bundle, traffic.msgs_per_s, traffic.bytes_per_s))
    if split.algorithm == "topic_count_equally_divide":
        loads = [(at, 1.0) for at, _ in loads]
    return evenest_cut(range_of(bundle)[1], loads)


async def _read(broker: PulsarBroker, owner: BrokerId) -> BrokerSample:
    alone = PulsarCluster(name=broker.cluster, brokers=(owner,))
    sampler = Sampler(broker.admin, broker.address)
    await sampler.sample(alone)
    until_s = monotonic() + LONGEST_REPEATED_S
    while True:
        await asyncio.sleep(WINDOW_S)
        samples, missing = await sampler.sample(alone)
        if owner in samples:
            return samples[owner]
        if missing.get(owner) != REPEATED or monotonic() > until_s:
            raise Unanswered(missing.get(owner, f"{owner} does not say what its topics carry"))


log = structlog.get_logger()

CHECK_EVERY_S: Final = 5.0
"""Interval of checks that Pulsar's own balancer is still off."""

SETTLE_S: Final = 10.0
"""Time within which brokers must apply a dynamic setting."""


class PulsarTerm:
    """See `ForeignTerm`; ``broker`` answers the requests about the cluster."""

    def __init__(self, context: Context, term: Term, broker: PulsarBroker, cluster: str) -> None:
        self._context = context
        self._broker = broker
        self._mandate = Elected(term, context.coordination, context.identity.broker)
        self._pulsar_balancer = balancer_of(context)
        self._reader = ClusterReader(broker.admin, broker.urls, with_isolation=False)
        self._importer = Importer(context, broker, cluster)
        self._held = "it is not known yet whether Pulsar's own balancer is off"
        self.owners = ObservedOwners(context.cluster_state, context.clock)
        self.orders = PulsarOrders(
            broker.admin,
            broker.address,
            broker.cluster,
            claims=broker.claims,
            owners=self.owners,
            topic_of=broker.topic_of,
            disputed=self.owners.disputed,
            mandate=self._mandate,
            failed=self._failed,
            cut_of=partial(find_cut, broker),
        )
        self._context.metrics.moves_awaiting_clients.set_function(lambda: self.orders.waiting)

    @property
    def uncut(self) -> Collection[BundleId]:
        return self.orders.uncut

    def held(self) -> str:
        return self._held

    async def run(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._importer.run(), name="import")
            await self._keep_off(wanted)

    def close(self) -> None:
        self.owners.close()
        self._context.metrics.balancing_held.set(0)
        self._context.metrics.moves_awaiting_clients.set_function(lambda: 0)

    async def _keep_off(self, wanted: Callable[[], bool]) -> None:
        off = False
        while True:
            try:
                off = await self._check_balancer(wanted=wanted(), off=off)
            except Deposed:
                raise
            except LoadManagerError as error:
                self._hold(str(error))
            self._context.metrics.balancing_held.set(wanted() and bool(self._held))
            await self._context.clock.sleep(CHECK_EVERY_S)

    async def _check_balancer(self, *, wanted: bool, off: bool) -> bool:
        """Switch Pulsar's balancer off, or restore it; return whether this term switched it off.

        Raises `LoadManagerError`: it is not certain that the balancer is off; `Deposed`: another
        sidecar leads.
        """
        if why := await self._mandate.confirm():
            self._hold(why)
            return off
        if not wanted:
            self._hold("balancing is off")
            if await self._pulsar_balancer.state.read() is not None:
                log_restored(await self._pulsar_balancer.restore(self._reader))
            return False
        if not off:
            cluster = await self._reader.read()
            await self._pulsar_balancer.begin(self._reader, cluster, take_over=False)
            log.info("pulsar.balancer.disabled", cluster=cluster.name)
        cluster = await self._reader.read()
        self._hold(switched_on(cluster) or cluster.migration)
        return True

    def _failed(self, error: Exception) -> None:
        if isinstance(error, LoadManagerError):
            log.warning("bundle.order.failed", error=str(error))
        else:
            self._context.unexpected.caught("orders", error)

    def _hold(self, why: str) -> None:
        if why != self._held:
            self._held = why
            (log.warning if why else log.info)("balancing.moves.held", why=why)


def balancer_of(context: Context) -> PulsarBalancer:
    return PulsarBalancer(
        SharedState(context.coordination),
        settle_s=SETTLE_S,
        otherwise="delete that override, so that the leader finds what Pulsar is to have later",
    )


def log_restored(done: tuple[str, ...]) -> None:
    for line in done:
        log.info("pulsar.balancer.restored", setting=line)
