import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import structlog

from loadmanager.agent.lease_terms import BrokerLost, Displaced, MembershipEnded
from loadmanager.agent.load_reports import Publisher
from loadmanager.agent.registration import Membership, Registrar, deregister, register
from loadmanager.agent.takeover import StandingBy, Takeover
from loadmanager.common.context import Context
from loadmanager.common.task_groups import first_leaf, leaves, raise_if_cancelled
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId
from loadmanager.core.orders import encode_owned
from loadmanager.ports.broker import BrokerError
from loadmanager.ports.coordination import CoordinationError, Disconnected, TooLarge
from loadmanager.pulsar_sidecar.broker import PulsarBroker

log = structlog.get_logger()

OWNED_EVERY_S: Final = 1.0
"""Interval of requests for the bundles that the broker serves."""

LOST_AFTER_S: Final = 10.0
"""A broker without an answer for this time is deregistered, and takes no part in moves."""

LAST_LEFT_WITHIN_S: Final = 45.0
"""Time for the last sidecar's ``last_left``, which may wait for older brokers twice."""

_PAUSE_S: Final = 0.5
_LOG_EVERY_S: Final = 60.0
_READY_TIMEOUT_S: Final = 5.0


@dataclass(slots=True, eq=False)
class ObservingAgent:
    """Keeps a broker registered, and its load report and owned list published, while it answers.

    On leaving, ``settled`` is awaited first, so that moves under way come to an end, and
    ``last_left`` after it if no other broker is registered.
    """

    context: Context
    broker: PulsarBroker
    publisher: Publisher
    settled: Callable[[], Awaitable[None]]
    last_left: Callable[[], Awaitable[None]]
    _takeover: Takeover = field(init=False)
    _registrar: Registrar = field(init=False)
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
                    await self._takeover.insist()
                except CoordinationError as unread:  # The next registration finds out.
                    log.debug("broker.takeover.read_failed", error=str(unread))
            except* StandingBy as waiting:
                self._ended(waiting)
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
        """Log why the broker is not registered: at once, then once a minute."""
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
        self.publisher.sampler.intention.mark_read(
            await context.coordination.get(znodes.draining(broker))
        )
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
            watch = context.coordination.watch(
                znodes.draining(broker), self.publisher.sampler.intention.mark_read
            )
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self.publisher.run(membership, report), name="reports")
                    tasks.create_task(self._observe(), name="owned")
                    await self._watch_registration(membership)
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

    async def _watch_registration(self, membership: Membership) -> None:
        await self._registrar.until_deleted(membership, lambda: self._leaving)
        raise MembershipEnded("the registration was deleted")

    async def drain(self) -> None:
        """Return at once: the broker continues without its sidecar, and keeps its bundles."""

    async def leave(self, within_s: float) -> None:
        """Deregister within ``within_s``; if no other broker is registered, await ``last_left``."""
        self._leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(within_s / 2):
                await self.settled()
        try:
            async with asyncio.timeout(within_s):
                if self._membership is not None:
                    await deregister(self.context.coordination, self._membership)
                last = not await self.context.coordination.children(znodes.BROKERS)
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
        """Write the owned list if it changed; after a lost reply the next call writes it again.

        A bundle's fencing token is the zxid of its first listing. If two brokers list it for a
        moment, the later listing counts. Raises `CoordinationError`: it may not have been written.
        """
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
