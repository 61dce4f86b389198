import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sized
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final, NamedTuple, NoReturn
from urllib.parse import urlsplit

import structlog

from loadmanager.adapters.host.processes import SEARCH_EVERY_S, listener_on
from loadmanager.common.cluster_state import ClusterState, Holding
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents
from loadmanager.common.watching import Subscriptions
from loadmanager.core import znodes
from loadmanager.core.bundle_traffic import BundleTraffic, topics_in
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import LoadManagerError, MalformedContent
from loadmanager.core.fields import to_json
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    TopicName,
    belongs_to_a_broker,
    namespace_of,
    range_of,
)
from loadmanager.core.load import BrokerUrls
from loadmanager.core.max_over_mean import best_split_point
from loadmanager.core.orders import SplitOrder
from loadmanager.core.rates import Rates
from loadmanager.core.wire.policies import (
    decode_anti_affinity,
    encode_boundaries,
    with_anti_affinity,
)
from loadmanager.leader.election import Deposed, Term
from loadmanager.ports.broker import BrokerRefused, BrokerStats, BrokerUnreachable
from loadmanager.ports.host import Clock
from loadmanager.pulsar.answers import (
    MANAGER,
    ClusterReader,
    PulsarCluster,
    addresses,
    locate,
    manager_of,
    prefer_tls,
    read_anti_affinity_group,
    read_boundaries,
    read_brokers,
    read_failure_domains,
    read_isolation,
    read_own_urls,
    read_owned,
    read_readiness,
    read_runtime,
    read_topics,
    read_version,
)
from loadmanager.pulsar.client import (
    AnswerRefused,
    PulsarAdmin,
    PulsarAdminError,
    Unanswered,
    answer_of,
)
from loadmanager.pulsar.moves import BrokerQueries
from loadmanager.pulsar.observation import topic_loads
from loadmanager.pulsar.orders import Elected, PulsarOrders, name_in, ordered_cut
from loadmanager.pulsar.sampling import LONGEST_REPEATED_S, REPEATED, BrokerSample, Sampler
from loadmanager.pulsar.state import PulsarBalancer, SharedState, switched_on

log = structlog.get_logger()

FIRST_WINDOW_S: Final = 1.0  # Window of the first sample, without which a broker would look idle.
_KNOWN_FOR_S: Final = 60.0


@dataclass
class PulsarBroker:
    """One Pulsar broker, as a `BrokerControl` that refuses all commands.

    Bundles that ``stays`` has a reason for are left out of the statistics, so no leader moves them.
    """

    admin: PulsarAdmin
    url: str
    name: BrokerId
    stays: Callable[[BundleId, BundleTraffic], str]
    cluster: str = ""
    claims: bool = True
    _owned: Sized = ()
    _settings: Mapping[str, str] = field(default_factory=dict)
    _urls: BrokerUrls | None = None
    _version: str = ""
    _known_until_s: float = float("-inf")
    _missing: str = ""
    _sample: BrokerSample | None = None
    _process_id: int | None = None
    _look_again_s: float = float("-inf")

    def __post_init__(self) -> None:
        self._sampler = Sampler(self.admin, self.address)
        self.admin.own = urlsplit(self.url).netloc

    async def close(self) -> None:
        await self.admin.close()

    async def health(self, timeout_s: float) -> None:
        with _as_broker_error():
            try:
                async with asyncio.timeout(timeout_s):
                    why = await read_readiness(self.admin, self.url, self.url)
            except TimeoutError:
                raise Unanswered(f"{self.url}: not ready within {timeout_s:g} s") from None
        if why:
            raise BrokerRefused(why)

    async def owned(self) -> tuple[BundleId, ...]:
        with _as_broker_error():
            await self._know()
            before, self._owned = self._owned, ()
            found = await read_owned(self.admin, self.url, self.cluster, self.name, before)
            self._owned = found
            return tuple(found)

    async def stats(self) -> BrokerStats:
        with _as_broker_error():
            await self._know()
            begins = self._sample is None
            sample = await self._read()
            if sample is None and begins:
                await asyncio.sleep(FIRST_WINDOW_S)
                sample = await self._read()
        if sample is None:
            raise BrokerUnreachable(self._missing)
        self._sample = sample
        return BrokerStats(
            window_s=sample.window_s,
            bundles={
                bundle: traffic.stats()
                for bundle, traffic in sample.bundles.items()
                if not self.stays(bundle, traffic)
            },
            version=self._version,
            process_id=await self._process(),
            urls=self._urls,
        )

    async def _process(self) -> int | None:
        """Return the id of the process on the broker's port, which may be in another container."""
        now_s = monotonic()
        if self._process_ended() or now_s >= self._look_again_s:
            self._look_again_s = now_s + SEARCH_EVERY_S
            parts = urlsplit(self.url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            found = await asyncio.to_thread(listener_on, port)
            self._process_id = None if found is None else found.process_id
        return self._process_id

    def _process_ended(self) -> bool:
        return self._process_id is not None and not Path("/proc", str(self._process_id)).exists()

    async def topics(self, bundle: BundleId) -> Mapping[TopicName, Rates]:
        if self._sample is None or bundle not in self._sample.bundles:
            raise BrokerRefused(f"{self.name} did not serve {bundle} when it was last read")
        rates = self._sample.topics
        return {topic: rates[name] for name, topic, _ in topics_in(bundle, rates)}

    @property
    def urls(self) -> tuple[str, ...]:
        others = (one for one in sorted(self.admin.known) if one != self.name)
        return (self.url, *(self.admin.reachable(self.address(BrokerId(one))) for one in others))

    def address(self, broker: BrokerId) -> str:
        return self.url if broker == self.name else addresses(self.url)(broker)

    async def topic_of(self, bundle: BundleId) -> TopicName | None:
        """Return one that a lookup finds, though it may not exist. Raises `PulsarAdminError`."""
        return next(iter(await read_topics(self.admin, self.url, bundle)), name_in(bundle))

    async def _read(self) -> BrokerSample | None:
        settings = {self.name: self._settings}
        alone = PulsarCluster(name=self.cluster, brokers=(self.name,), settings=settings)
        samples, missing = await self._sampler.sample(alone)
        self._missing = missing.get(self.name, "")
        return samples.get(self.name)

    async def _know(self) -> None:
        if monotonic() < self._known_until_s:
            return
        runtime = self._settings = await read_runtime(self.admin, self.url)
        self.claims = manager_of(runtime.get(MANAGER, "")) != "extensible"
        self.cluster = runtime["clusterName"]
        self._version = await read_version(self.admin, self.url)
        brokers = await read_brokers(self.admin, self.url, self.cluster)
        if self.name not in brokers:
            raise BrokerRefused(
                f"{self.url}: [broker] id {self.name} is no active broker of {self.cluster}; "
                f"expected one of {', '.join(brokers[:8])}"
            )
        self.admin.known = set(brokers)
        prefer_tls(self.admin, self.url, runtime)
        if self.admin.access.secret or self.admin.encrypts:
            others = {*brokers} - {self.name} - self.admin.reached.keys()
            await locate(self.admin, self.url, self.cluster, sorted(others))
        try:
            self._urls = await read_own_urls(self.admin, self.url, self.cluster, self.name)
        except AnswerRefused as error:
            log.debug("broker.urls.read_failed", error=str(error))
        self._known_until_s = monotonic() + _KNOWN_FOR_S

    async def renew_lease(self, *_: object, **__: object) -> NoReturn:
        """Refuse: the broker serves under Pulsar's own locks, without leases."""
        raise BrokerRefused(f"{self.name} owns its bundles by itself and obeys no agent")

    load = renew_lease
    unload = renew_lease


@contextmanager
def _as_broker_error() -> Iterator[None]:
    try:
        with answer_of("the broker"):
            yield
    except Unanswered as error:
        raise BrokerUnreachable(str(error)) from error
    except PulsarAdminError as error:
        raise BrokerRefused(str(error)) from error


# The longest time for which an owner found by a move overrides a list that differs.
FOUND_FOR_S: Final = 5.0


class _Found(NamedTuple):
    broker: BrokerId | None
    listed: Holding | None
    until_s: float


class ObservedOwners:
    """The owners as seen by the task controller of one term.

    An owner that a move found overrides the lists until they change for that bundle. A bundle that
    its broker lists but never reported is left out: it stays (`PulsarBroker.stays`), or is new.
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


WINDOW_S: Final = 5.0  # Window in which the traffic of topics is counted to find a cut.


async def find_cut(
    broker: PulsarBroker, bundle: BundleId, split: SplitOrder, owner: BrokerId
) -> int | None:
    """Return where to cut a bundle, None if no cut leaves topics on both sides.

    Several versions of Pulsar answer 500 to a split by the algorithm that divides by traffic.
    """
    cut = await ordered_cut(bundle, split, owner)
    if cut is not None:
        return cut
    found = await _read(broker, owner)
    traffic = found.bundles.get(bundle)
    if traffic is None:
        return None
    loads = topic_loads(found, [bundle], traffic.msgs_per_s, traffic.bytes_per_s)[bundle]
    if split.algorithm == "topic_count_equally_divide":
        loads = [(at, 1.0) for at, _ in loads]
    return best_split_point(range_of(bundle)[1], loads)


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


# Interval of checks that Pulsar's own balancer is still off, and of imports.
CHECK_EVERY_S: Final = 5.0
SETTLE_S: Final = 10.0  # Time within which brokers must apply a dynamic setting.


class PulsarTerm:
    def __init__(self, context: Context, term: Term, broker: PulsarBroker, cluster: str) -> None:
        self._context = context
        self._broker = broker
        self._mandate = Elected(term, context.coordination, context.identity.broker)
        self._pulsar_balancer = balancer_of(context)
        self._reader = ClusterReader(broker.admin, broker.urls, with_isolation=False)
        self._importer = Importer(context, broker, cluster)
        self._held = "it is not known yet whether Pulsar's own balancer is off"
        self.owners = owners = ObservedOwners(context.cluster_state, context.clock)
        self.orders = PulsarOrders(
            BrokerQueries(broker.admin, broker.address, broker.cluster, lambda: owners.brokers),
            claims=broker.claims,
            owners=owners,
            topic_of=broker.topic_of,
            disputed=owners.disputed,
            mandate=self._mandate,
            failed=self._failed,
            cut_of=partial(find_cut, broker),
        )
        self._context.metrics.moves_awaiting_clients.set_function(lambda: self.orders.waiting)

    @property
    def unsplittable(self) -> Collection[BundleId]:
        return self.orders.unsplittable

    def held(self) -> str:
        return self._held

    async def run(self, wanted: Callable[[], bool]) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._importer.run(), name="import")
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

    def close(self) -> None:
        self.owners.close()
        self._context.metrics.balancing_held.set(0)
        self._context.metrics.moves_awaiting_clients.set_function(lambda: 0)

    async def _check_balancer(self, *, wanted: bool, off: bool) -> bool:
        """Switch Pulsar's balancer off, or restore it; return whether this term switched it off."""
        if why := await self._mandate.confirm():
            self._hold(why)
            return off
        if not wanted:
            self._hold("balancing is off")
            if await self._pulsar_balancer.state.read() is not None:
                await restore(self._context, self._reader)
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


async def restore(context: Context, reader: ClusterReader) -> None:
    for line in await balancer_of(context).restore(reader):
        log.info("pulsar.balancer.restored", setting=line)


def balancer_of(context: Context) -> PulsarBalancer:
    otherwise = "delete that override, so that the leader finds what Pulsar is to have later"
    return PulsarBalancer(SharedState(context.coordination), settle_s=SETTLE_S, otherwise=otherwise)


POLICIES_EVERY_S: Final = 30.0
GROUPS_EVERY_S: Final = 300.0
_LEAST_PAUSE_S: Final = 1.0
_PARALLEL: Final = 8
_LOG_EVERY_S: Final = 60.0


@dataclass(eq=False)
class Importer:
    """The leader's copy of Pulsar's bundles, groups, policies and domains, for ``cluster``."""

    context: Context
    broker: PulsarBroker
    cluster: str
    _policies_due_s: float = field(default=float("-inf"), init=False)
    _group_due_s: dict[Namespace, float] = field(default_factory=dict, init=False)
    _log_again_s: float = field(default=float("-inf"), init=False)

    def __post_init__(self) -> None:
        self._documents = Documents(self.context.coordination)

    async def run(self) -> None:
        """Import until cancelled; errors are logged, and leave the existing copies unchanged."""
        clock, changes = self.context.clock, self.context.cluster_state.owner_changes
        while True:
            try:
                with answer_of(self.broker.url):
                    await self.import_due()
            except LoadManagerError as error:
                now_s = clock.monotonic_s()
                if now_s >= self._log_again_s:
                    self._log_again_s = now_s + _LOG_EVERY_S
                    log.warning("pulsar.import.failed", why=str(error) or type(error).__name__)
            await clock.sleep(_LEAST_PAUSE_S)
            await changes.wait(CHECK_EVERY_S)

    async def import_due(self) -> None:
        now_s, failed = self.context.clock.monotonic_s(), list[BaseException]()
        if now_s >= self._policies_due_s:
            try:
                await self._import_policies()
                self._policies_due_s = now_s + POLICIES_EVERY_S
            except LoadManagerError as error:
                failed.append(error)  # Boundaries are imported nevertheless.
        listed = list(self.context.cluster_state.owners)
        stale = await self._unknown(listed)
        for name in {namespace_of(one) for one in listed if not belongs_to_a_broker(one)}:
            self._group_due_s.setdefault(name, float("-inf"))
        due = stale | {name for name, at_s in self._group_due_s.items() if at_s <= now_s}
        parallel = asyncio.Semaphore(_PARALLEL)

        async def bounded(namespace: Namespace) -> None:
            async with parallel:
                if await self._import(namespace):
                    self._group_due_s[namespace] = now_s + GROUPS_EVERY_S
                else:
                    self._group_due_s.pop(namespace, None)

        ended = await asyncio.gather(*map(bounded, sorted(due)), return_exceptions=True)
        for one in (*failed, *ended):
            if one is not None:
                raise one

    async def _unknown(self, bundles: Iterable[BundleId]) -> set[Namespace]:
        found: set[Namespace] = set()
        for bundle in bundles:
            namespace = namespace_of(bundle)
            if namespace not in found and not belongs_to_a_broker(bundle):
                boundaries = None
                with suppress(MalformedContent):
                    boundaries = await self.context.cluster_state.boundaries(namespace)
                if boundaries is None or bundle not in boundaries:
                    found.add(namespace)
        return found

    async def _import(self, namespace: Namespace) -> bool:
        admin, url, path = self.broker.admin, self.broker.url, znodes.local_policies(namespace)
        found = await read_boundaries(admin, url, namespace)
        if found is None:
            return False  # It was deleted; brokers will stop listing its bundles.
        group = await read_anti_affinity_group(admin, url, namespace)
        await self._documents.change(path, partial(_entered, path, found, group))
        await self.context.cluster_state.reread_boundaries(namespace)
        return True

    async def _write(self, path: str, data: bytes | None) -> None:
        await self._documents.change(path, lambda _: data)

    async def _import_policies(self) -> None:
        asked = (self.broker.admin, self.broker.url, self.broker.cluster)
        isolation, _ = await read_isolation(*asked)
        await self._write(znodes.isolation_policies(self.cluster), isolation.encode())
        folder, domains = znodes.failure_domains(self.cluster), await read_failure_domains(*asked)
        for name in sorted({*domains, *await self._documents.names(folder)}):
            content = to_json(domains[name]) if name in domains else None
            await self._write(f"{folder}/{name}", content)


def _entered(path: str, found: Boundaries, group: str, data: bytes | None) -> bytes:
    try:
        if data and decode_anti_affinity(path, data) == group:
            return encode_boundaries(found, data)
        return with_anti_affinity(path, encode_boundaries(found, data), group)
    except MalformedContent:
        return with_anti_affinity(path, encode_boundaries(found), group)
