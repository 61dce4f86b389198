"""Feeds events to the ownership table, and carries out the resulting effects.

Locks are left to the lock worker, which finds the locks to take and drop in the records.
Commands to the broker are sent here: one at a time per bundle, and a bounded number in total.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from loadmanager.agent.ownership_records import Ownership, OwnershipRecords
from loadmanager.common.subscriptions import Subscriptions
from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Effect, Event, Phase, may_serve, step
from loadmanager.ports.broker import BrokerControl, BrokerError, StaleAgent
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()

PARALLEL: Final = 32


class OwnershipEffects:
    """Changes the phases of the records of one agent.

    ``lock_work`` signals that a lock is to be taken or dropped or the owned list to be
    written, and ``serving_changes`` that the broker serves another set of bundles.
    ``commands_done`` counts the commands that ended. ``disobeyed`` is set when the broker
    refuses one because it obeys a newer agent. ``unloaded`` is called when the broker has
    unloaded a bundle.
    """

    def __init__(
        self,
        broker: BrokerControl,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        next_owner_url: Callable[[BundleId], str],
        *,
        unloaded: Callable[[Ownership], None],
    ) -> None:
        self._broker = broker
        self._metrics = metrics
        self._tasks = tasks
        self._next_owner_url = next_owner_url
        self._unloaded = unloaded
        self._parallel = asyncio.Semaphore(PARALLEL)
        self._agent_epoch = 0
        self._leaving_alone = False
        self.records = OwnershipRecords()
        self.lock_work = Subscriptions()
        self.serving_changes = Subscriptions()
        self.commands_done = 0
        self.disobeyed = asyncio.Event()

    def begin(self, agent_epoch: int) -> None:
        """Command the broker under this epoch from now on."""
        self._agent_epoch = agent_epoch
        self._leaving_alone = False
        self.disobeyed.clear()

    def end(self) -> None:
        self._leaving_alone = True

    def fire_all(self, event: Event) -> None:
        for record in self.records:
            if record.phase is not Phase.FREE:
                self.fire(record, event)
        self.lock_work.notify()

    def fire(self, record: Ownership, event: Event) -> None:
        """Feed an event of one bundle, and carry out its effects.

        Raises `IllegalTransition`: ``event`` cannot happen in the bundle's phase.
        """
        before = record.phase
        after, effects = step(record.bundle, before, event)
        self.records.enter(record, after)
        if after is not before:
            log.debug("bundle.phase.changed", bundle=record.bundle, was=before, now=after, by=event)
            self._metrics.phase_changed(before, after)
            self.serving_changes.notify()
        for effect in effects:
            if effect is Effect.LOAD_ON_BROKER:
                self._command(record, effect, self._load)
            elif effect is Effect.UNLOAD_FROM_BROKER:
                self.unload(record)
            else:
                self.lock_work.notify()

    def unload(self, record: Ownership) -> None:
        """Unload a bundle from the broker, after the loads of the parts that it was split into."""
        parts = filter(None, map(self.records.get, record.made_into))
        self._command(record, Effect.UNLOAD_FROM_BROKER, self._unload, after=parts)

    def serving_begun(self, record: Ownership) -> None:
        if record.loading:
            record.loading = False
            self.records.file(record)
            self.serving_changes.notify()
            self.lock_work.notify()

    def _command(
        self,
        record: Ownership,
        effect: Effect,
        run: Callable[[Ownership], Awaitable[None]],
        after: Iterable[Ownership] = (),
    ) -> None:
        """Run a command after the earlier commands for this bundle and ``after`` have ended."""
        if self._leaving_alone:
            return
        earlier = [one.command for one in (record, *after) if one.command]

        async def carry_out() -> None:
            if earlier:
                await asyncio.wait(earlier)
            async with self._parallel:
                try:
                    await run(record)
                except BrokerError as error:
                    # The next lease renewal shows what the broker serves, and the comparison
                    # with it repeats the command.
                    why, bundle = str(error), record.bundle
                    log.warning("broker.command.failed", command=effect, bundle=bundle, error=why)

        record.command = self._tasks.create_task(carry_out(), name=f"{effect} {record.bundle}")
        record.command.add_done_callback(lambda task: self._ended(record, task))

    def _ended(self, record: Ownership, task: asyncio.Task[None]) -> None:
        self.commands_done += 1
        record.command_ended = self.commands_done
        if record.command is task:
            record.command = None

    @contextmanager
    def _as_newest_agent(self) -> Iterator[int]:
        """Record a refusal of the current epoch; refusals of earlier epochs are ignored."""
        epoch = self._agent_epoch
        try:
            yield epoch
        except StaleAgent:
            if epoch == self._agent_epoch:
                self.disobeyed.set()
            raise

    async def _load(self, record: Ownership) -> None:
        bundle, token = record.bundle, record.token
        if record.phase is Phase.OWNED:
            with self._as_newest_agent() as epoch:
                await self._broker.load(bundle, agent_epoch=epoch, fencing_token=token)
            log.info("bundle.serving.begun", bundle=bundle, fencing_token=token)
            if record.token == token:
                self.serving_begun(record)

    async def _unload(self, record: Ownership) -> None:
        if record.phase is Phase.OWNED:
            return
        for former in filter(None, map(self.records.get, record.made_of)):
            # It was split into this one, and would take the topics back as soon as this
            # one stopped; so it stops first.
            if record.bundle in former.made_into:
                await self._unload(former)
        bundle, token = record.bundle, max(record.token, record.broker_token)
        url = self._next_owner_url(bundle)
        with self._as_newest_agent() as epoch:
            await self._broker.unload(
                bundle, agent_epoch=epoch, fencing_token=token, next_owner_url=url
            )
        log.info("bundle.serving.ended", bundle=bundle, fencing_token=token)
        if may_serve(record.phase):
            self.fire(record, Event.BROKER_UNLOADED)
            self._unloaded(record)
