"""Feeding events to the ownership table, and carrying out the effects that it asks for.

Locks are left to the lock worker, which finds what to take and to drop in the records. The
broker is commanded here, one command a bundle at a time.
"""

import asyncio
from collections.abc import Callable

import structlog

from loadmanager.app.changes import Changes
from loadmanager.app.commanding import BrokerCommands
from loadmanager.app.ownership_records import Ownership, OwnershipRecords
from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Effect, Event, Phase, may_serve, step
from loadmanager.ports import BrokerControl
from loadmanager.telemetry.metrics import Metrics

log = structlog.get_logger()


class OwnershipEffects:
    """Moves the records of one agent from phase to phase.

    ``lock_work`` tells that a lock is to be taken or dropped or the owned list to be
    written, and ``serving_changes`` that the broker serves another set of bundles.
    ``unloaded`` is called when the broker has stopped a bundle.
    """

    def __init__(
        self,
        broker_control: BrokerControl,
        metrics: Metrics,
        tasks: asyncio.TaskGroup,
        next_owner_url: Callable[[BundleId], str],
        *,
        unloaded: Callable[[Ownership], None],
    ) -> None:
        self._metrics = metrics
        self._next_owner_url = next_owner_url
        self._unloaded = unloaded
        self.commands = BrokerCommands(tasks, broker_control)
        self.records = OwnershipRecords()
        self.lock_work = Changes()
        self.serving_changes = Changes()

    def fire_all(self, event: Event) -> None:
        """Feed an event that concerns every bundle."""
        for record in self.records:
            if record.phase is not Phase.FREE:
                self.fire(record, event)
        self.lock_work.tell()

    def fire(self, record: Ownership, event: Event) -> None:
        """Feed an event of one bundle, and carry out what follows.

        Raises:
            IllegalTransition: ``event`` cannot happen in the bundle's phase.
        """
        before = record.phase
        after, effects = step(record.bundle, before, event)
        self.records.enter(record, after)
        if after is not before:
            log.debug("bundle.phase.changed", bundle=record.bundle, was=before, now=after, by=event)
            self._metrics.phase_changed(before, after)
            self.serving_changes.tell()
        for effect in effects:
            if effect is Effect.LOAD_ON_BROKER:
                self.commands.give(record, effect, self._load)
            elif effect is Effect.UNLOAD_FROM_BROKER:
                self.unload(record)
            else:
                self.lock_work.tell()

    def unload(self, record: Ownership) -> None:
        """Have the broker stop a bundle, after the loads of the parts that it was split into."""
        parts = filter(None, map(self.records.get, record.made_into))
        self.commands.give(record, Effect.UNLOAD_FROM_BROKER, self._unload, after=parts)

    def serving_begun(self, record: Ownership) -> None:
        """Take note that the broker serves a bundle under its present lock."""
        if record.loading:
            record.loading = False
            self.records.file(record)
            self.serving_changes.tell()
            self.lock_work.tell()

    async def _load(self, record: Ownership) -> None:
        token = record.token
        if record.phase is Phase.OWNED:
            await self.commands.load(record.bundle, token)
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
        token = max(record.token, record.broker_token)
        await self.commands.unload(record.bundle, token, self._next_owner_url(record.bundle))
        if may_serve(record.phase):
            self.fire(record, Event.BROKER_UNLOADED)
            self._unloaded(record)
