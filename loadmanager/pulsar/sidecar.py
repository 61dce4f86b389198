import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import urlsplit

import structlog

from loadmanager.agent.load_reports import Publisher
from loadmanager.agent.registration import (
    Agent,
    BrokerLost,
    Displaced,
    Membership,
    MembershipEnded,
    Registrar,
    Takeover,
    deregister,
    register,
)
from loadmanager.common.context import Context, first_leaf, leaves, raise_if_cancelled
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.common.watching import Subscriptions
from loadmanager.config import Config
from loadmanager.core import znodes
from loadmanager.core.bundle_traffic import SNAPSHOTS, BundleTraffic
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, parse_broker
from loadmanager.core.orders import encode_owned
from loadmanager.leader.election import Term
from loadmanager.lookup.service import LookupService, OwnBundles
from loadmanager.ports.broker import BrokerError
from loadmanager.ports.coordination import CoordinationError, Disconnected, TooLarge
from loadmanager.ports.lookup import NamespaceUnknown, Owner, Unavailable
from loadmanager.pulsar.answers import ClusterReader, read_boundaries, read_lookup, read_partitions
from loadmanager.pulsar.client import (
    AnswerRefused,
    PulsarAdmin,
    PulsarAdminError,
    access_of,
    answer_of,
    confidential,
)
from loadmanager.pulsar.observation import Rules
from loadmanager.pulsar.sidecar_term import PulsarBroker, PulsarTerm, restore

_RULES: Final = Rules(pinned=(SNAPSHOTS,))
log = structlog.get_logger()


class ObservedLookups(LookupService):
    def __init__(self, broker: PulsarBroker, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._broker = broker

    async def boundaries(self, namespace: Namespace) -> Boundaries:
        """Ask the broker for boundaries that were not imported yet."""
        try:
            return await super().boundaries(namespace)
        except NamespaceUnknown:
            with _as_refused(f"the bundles of {namespace}"):
                found = await read_boundaries(self._broker.admin, self._broker.url, namespace)
            if found is None:
                raise
            return found

    async def partitions(self, topic: TopicName) -> int:
        await self.boundaries(topic.namespace)
        with _as_refused(f"the partitions of {topic}"):
            return await read_partitions(self._broker.admin, self._broker.url, topic)

    async def assign(self, bundle: BundleId) -> BrokerId:
        """Refuse: Pulsar places a bundle at its first lookup."""
        raise Unavailable(f"{bundle}: Pulsar's brokers place bundles by themselves")

    async def find_owner(self, topic: TopicName) -> Owner:
        bundle = await self.bundle_of(topic)
        if known := self.owner_if_known(topic):
            return known
        with _as_refused(f"the owner of {topic}"):
            urls = await read_lookup(self._broker.admin, self._broker.url, topic)
            try:
                broker = parse_broker(urlsplit(urls.http_url or urls.http_url_tls).netloc)
            except InvalidName as error:
                raise Unavailable(f"the owner of {topic} has no address: {error}") from None
        epoch = self.leader.epoch if self.leader else 0
        return Owner(
            bundle=bundle, broker=broker, urls=urls, listeners={}, fencing_token=0, epoch=epoch
        )


@contextmanager
def _as_refused(what: str) -> Iterator[None]:
    try:
        with answer_of(what):
            yield
    except PulsarAdminError as error:
        missing = isinstance(error, AnswerRefused) and error.status == HTTPStatus.NOT_FOUND
        raise (NamespaceUnknown if missing else Unavailable)(f"{what}: {error}") from None


@dataclass(slots=True)
class BesidePulsar:
    """A Pulsar broker, as a `Kind`; ``cluster`` is its name in loadmanager's configuration."""

    broker: PulsarBroker
    cluster: str
    _term: PulsarTerm | None = None

    def agent(
        self,
        _config: Config,
        context: Context,
        publisher: Publisher,
        _settings: RuntimeSettings,
        _commands: asyncio.TaskGroup,
    ) -> tuple[Agent, OwnBundles]:
        async def left() -> None:
            try:
                reader = ClusterReader(self.broker.admin, self.broker.urls, with_isolation=False)
                await restore(context, reader)
            except LoadManagerError as error:
                log.warning("pulsar.balancer.restore_failed", error=str(error))

        async def settled() -> None:
            if self._term is not None:
                await self._term.orders.settled()

        member = ObservingAgent(context, self.broker, publisher, settled=settled, last_left=left)
        return member, member

    @property
    def answering(self) -> Callable[..., LookupService]:
        return partial(ObservedLookups, self.broker)

    def stays(self, bundle: BundleId, /) -> bool:
        return bool(_RULES.why_stays(bundle, BundleTraffic()))

    def term(self, context: Context, term: Term, /) -> PulsarTerm:
        self._term = PulsarTerm(context, term, self.broker, self.cluster)
        return self._term


def make_pulsar_broker(config: Config) -> PulsarBroker:
    """Raises `TlsFilesUnusable`: a file cannot be read or does not fit the others."""
    url = config.pulsar.admin_url or config.broker.http_url
    itself = urlsplit(url).netloc
    # On this host a token is safe without TLS, whose certificate rarely names 127.0.0.1.
    access = access_of(config.pulsar.model_dump(), {itself: itself} if confidential(url) else {})
    return PulsarBroker(PulsarAdmin(access), url, config.broker.id, _RULES.why_stays)


OWNED_EVERY_S: Final = 1.0  # Interval of requests for the bundles that the broker serves.
# A broker without an answer for this time is deregistered, and takes no part in moves.
LOST_AFTER_S: Final = 10.0
# Time for the last sidecar's ``last_left``, which may wait for older brokers twice.
LAST_LEFT_WITHIN_S: Final = 45.0
_PAUSE_S: Final = 0.5
_LOG_EVERY_S: Final = 60.0
_READY_TIMEOUT_S: Final = 5.0


@dataclass(eq=False)
class ObservingAgent:
    """Keeps a broker registered, and its report and owned list published, while it answers."""

    context: Context
    broker: PulsarBroker
    publisher: Publisher
    settled: Callable[[], Awaitable[None]]
    last_left: Callable[[], Awaitable[None]]
    changes: Subscriptions = field(default_factory=Subscriptions, init=False)
    handovers: Mapping[BundleId, BrokerId] = field(default_factory=dict, init=False)
    _membership: Membership | None = None
    _tokens: Mapping[BundleId, int] = field(default_factory=dict)
    _leaving: bool = False
    _why: str = "it is being registered"
    _log_again_s: float = float("-inf")

    def __post_init__(self) -> None:
        context = self.context
        self._takeover = Takeover(context.identity, context.coordination, context.clock)
        self._registrar = Registrar(context)
        context.metrics.broker_leased.set(0)

    def serves(self, _bundle: BundleId) -> bool:
        return True

    @property
    def registered(self) -> bool:
        return self._membership is not None

    def unready(self) -> Iterator[str]:
        if self._membership is None:
            yield f"the broker is not registered: {self._why}"

    async def run(self) -> None:
        while not self._leaving:
            try:
                await self._one_membership()
            except* Displaced as displaced:
                self._ended(displaced)
                try:
                    await self._takeover.check_command()
                except CoordinationError as unread:  # The next registration finds out.
                    log.debug("broker.takeover.read_failed", error=str(unread))
            except* (CoordinationError, BrokerError, MembershipEnded) as ended:
                self._ended(ended)
            except* Exception as unexpected:  # noqa: BLE001 - no error ends the sidecar
                for error in leaves(unexpected):
                    self.context.unexpected.caught("membership", error)
                self._ended(unexpected)
            finally:
                self._membership = None
                self.context.metrics.broker_leased.set(0)
            raise_if_cancelled()
            await self.context.clock.sleep(_PAUSE_S)

    def _ended(self, ended: BaseExceptionGroup[Exception]) -> None:
        error = first_leaf(ended)
        self._why = str(error) or type(error).__name__
        now_s = self.context.clock.monotonic_s()
        if self._membership is not None or now_s >= self._log_again_s:
            self._log_again_s = now_s + _LOG_EVERY_S
            log.warning("broker.membership.ended", why=self._why)

    async def _one_membership(self) -> None:
        context, registrar = self.context, self._registrar
        await registrar.ready()
        broker = context.identity.broker
        mark_read, draining = self.publisher.sampler.intention.mark_read, znodes.draining(broker)
        mark_read(await context.coordination.get(draining))
        try:
            await self.broker.health(_READY_TIMEOUT_S)
            report = self.publisher.fitting(await self.publisher.sampler.sample())
            owned = await self.broker.owned()
        except BrokerError:
            await registrar.take_back()
            raise
        membership, _ = await register(
            context.coordination, context.identity, report, self._takeover
        )
        try:
            self._tokens = {}
            await self._publish_owned(owned)
            self._membership = membership
            context.metrics.broker_leased.set(1)
            context.cluster_state.changes.notify()  # This sidecar may be eligible to lead now.
            watch = context.coordination.watch(draining, mark_read)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.publisher.run(membership, report), name="reports")
                    tasks.create_task(self._observe(), name="owned")
                    await registrar.until_deleted(membership, lambda: self._leaving)
                    raise MembershipEnded("the registration was deleted")
            finally:
                watch.close()
        except* BrokerLost:
            await registrar.give_up(membership)
            raise
        except* (CoordinationError, MembershipEnded, Displaced):
            raise
        except* Exception:
            await registrar.give_up(membership)
            raise

    async def _observe(self) -> None:
        """Raises `BrokerLost`: it has not answered, or has not been ready, for too long."""
        clock = self.context.clock
        answered_s = clock.monotonic_s()
        while True:
            await clock.sleep(OWNED_EVERY_S)
            try:
                await self.broker.health(_READY_TIMEOUT_S)
                owned = await self.broker.owned()
            except BrokerError as error:
                if clock.monotonic_s() - answered_s >= LOST_AFTER_S:
                    raise BrokerLost(f"no answer for {LOST_AFTER_S:g} s: {error}") from error
                continue
            answered_s = clock.monotonic_s()
            try:
                await self._publish_owned(owned)
            except Disconnected as error:
                log.debug("broker.owned_list.write_failed", error=str(error))

    async def drain(self) -> None:
        """Return at once: the broker continues without its sidecar, and keeps its bundles."""

    async def leave(self, within_s: float) -> None:
        """Deregister within ``within_s``; if no other broker is registered, await ``last_left``."""
        self._leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s / 2):
                await self.settled()
        coordination = self.context.coordination
        try:
            async with asyncio.timeout(within_s):
                if self._membership is not None:
                    await deregister(coordination, self._membership)
                last = not await coordination.children(znodes.BROKERS)
            if last:
                async with asyncio.timeout(LAST_LEFT_WITHIN_S):
                    await self.last_left()
        except TimeoutError:
            log.warning("sidecar.shutdown.timed_out")
        except CoordinationError as error:
            log.warning("broker.deregistration.failed", why=str(error))

    async def serving_ended(self) -> None:
        """Return at once: the broker serves under Pulsar's locks, none of which is held here."""

    async def _publish_owned(self, owned: Collection[BundleId]) -> None:
        """Write a changed owned list; a token is the zxid of the bundle's first listing."""
        if self._tokens.keys() == set(owned):
            return
        broker = self.context.identity.broker
        tokens = {bundle: self._tokens.get(bundle) for bundle in sorted(owned)}
        try:
            stat = await self.context.coordination.set(znodes.owned(broker), encode_owned(tokens))
        except TooLarge as error:
            self.context.oversized.refused("owned", broker, error)
            return
        self._tokens = {
            bundle: stat.mzxid if token is None else token for bundle, token in tokens.items()
        }
