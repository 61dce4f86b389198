"""Commands to the broker: one at a time for each bundle, a bounded number in all."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

import structlog

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
        self._running: dict[BundleId, asyncio.Task[None]] = {}
        self._ended: dict[BundleId, int] = {}
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
        bundle: BundleId,
        effect: Effect,
        run: Callable[[BundleId], Awaitable[None]],
        after: Iterable[BundleId] = (),
    ) -> None:
        """Run a command once those given before, for this bundle and ``after``, have ended."""
        if self._leaving_alone:
            return
        earlier = [self._running[one] for one in (bundle, *after) if one in self._running]
        task = self._tasks.create_task(
            self._carry_out(bundle, effect, run, earlier), name=f"{effect} {bundle}"
        )
        self._running[bundle] = task
        task.add_done_callback(lambda done: self._end(bundle, done))

    def since(self, bundle: BundleId, mark: int) -> bool:
        """Return whether a command of ``bundle`` is under way or ended after ``mark``."""
        return bundle in self._running or self._ended.get(bundle, 0) > mark

    def forget(self, bundle: BundleId) -> None:
        """Forget when the last command of a bundle ended that is of no more interest."""
        if bundle not in self._running:
            self._ended.pop(bundle, None)

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
        bundle: BundleId,
        effect: Effect,
        run: Callable[[BundleId], Awaitable[None]],
        earlier: list[asyncio.Task[None]],
    ) -> None:
        if earlier:
            await asyncio.wait(earlier)
        async with self._parallel:
            try:
                await run(bundle)
            except BrokerError as error:
                # The next lease renewal tells what the broker serves, and the
                # comparison with that gives the command again.
                why = str(error)
                log.warning("broker.command.failed", command=effect, bundle=bundle, error=why)

    def _end(self, bundle: BundleId, task: asyncio.Task[None]) -> None:
        self.done += 1
        self._ended[bundle] = self.done
        if self._running.get(bundle) is task:
            del self._running[bundle]
