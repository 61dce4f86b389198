"""Commands to the broker: one at a time for each bundle, a bounded number in all."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

from loadmanager.app.ownership_records import Ownership
from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import Effect
from loadmanager.ports import BrokerControl, BrokerError, StaleAgent

log = structlog.get_logger()

PARALLEL: Final = 32


class BrokerCommands:
    """Runs commands in the order they were given for a bundle.

    ``done`` counts those that ended, as a mark in time: an answer of the broker that was
    asked for at a mark says nothing about a bundle with a command under way or ended
    since. ``disobeyed`` is set when the broker refuses one because it obeys a newer agent.
    """

    def __init__(
        self, tasks: asyncio.TaskGroup, broker: BrokerControl, parallel: int = PARALLEL
    ) -> None:
        self._tasks = tasks
        self._broker = broker
        self._agent_epoch = 0
        self._leaving_alone = False
        self.disobeyed = asyncio.Event()
        self._parallel = asyncio.Semaphore(parallel)
        self.done = 0

    def begin(self, agent_epoch: int) -> None:
        """Command the broker under this epoch from now on."""
        self._agent_epoch = agent_epoch
        self._leaving_alone = False
        self.disobeyed.clear()

    def end(self) -> None:
        """Give no more commands, until another epoch begins."""
        self._leaving_alone = True

    async def load(self, bundle: BundleId, token: int) -> None:
        """Have the broker serve ``bundle``; raises as `BrokerControl.load`."""
        with self._as_newest_agent() as epoch:
            await self._broker.load(bundle, agent_epoch=epoch, fencing_token=token)
        log.info("bundle.serving.begun", bundle=bundle, fencing_token=token)

    async def unload(self, bundle: BundleId, token: int, next_owner_url: str) -> None:
        """Have the broker serve ``bundle`` no more; raises as `BrokerControl.unload`."""
        with self._as_newest_agent() as epoch:
            await self._broker.unload(
                bundle, agent_epoch=epoch, fencing_token=token, next_owner_url=next_owner_url
            )
        log.info("bundle.serving.ended", bundle=bundle, fencing_token=token)

    def give(
        self,
        record: Ownership,
        effect: Effect,
        run: Callable[[Ownership], Awaitable[None]],
        after: Iterable[Ownership] = (),
    ) -> None:
        """Run a command once those given before, for this bundle and ``after``, have ended."""
        if self._leaving_alone:
            return
        earlier = [one.command for one in (record, *after) if one.command]
        task = self._tasks.create_task(
            self._carry_out(record, effect, run, earlier), name=f"{effect} {record.bundle}"
        )
        record.command = task
        task.add_done_callback(lambda done: self._end(record, done))

    @contextmanager
    def _as_newest_agent(self) -> Iterator[int]:
        """Notice a refusal of the present epoch; one of an earlier epoch means nothing."""
        epoch = self._agent_epoch
        try:
            yield epoch
        except StaleAgent:
            if epoch == self._agent_epoch:
                self.disobeyed.set()
            raise

    async def _carry_out(
        self,
        record: Ownership,
        effect: Effect,
        run: Callable[[Ownership], Awaitable[None]],
        earlier: list[asyncio.Task[None]],
    ) -> None:
        if earlier:
            await asyncio.wait(earlier)
        async with self._parallel:
            try:
                await run(record)
            except BrokerError as error:
                # The next lease renewal tells what the broker serves, and the
                # comparison with that gives the command again.
                log.warning(
                    "broker.command.failed", command=effect, bundle=record.bundle, error=str(error)
                )

    def _end(self, record: Ownership, task: asyncio.Task[None]) -> None:
        self.done += 1
        record.command_ended = self.done
        if record.command is task:
            record.command = None
