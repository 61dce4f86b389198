import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import structlog

from loadmanager.common.cluster_conditions import ClusterKey, Conditions, agree
from loadmanager.common.context import Context
from loadmanager.core.ids import BrokerId
from loadmanager.leader.term import read_ahead
from loadmanager.ports.coordination import Connection, CoordinationError
from loadmanager.wiring.application import Application

log = structlog.get_logger()

_SHOW_EVERY_S = 2.0
_NEW_SESSION_POLL_S = 0.5


class Server(Protocol):
    async def start(self, host: str, port: int) -> int: ...

    async def stop(self) -> None: ...


@dataclass(slots=True)
class Sidecar:
    """Runs the parts of one process: agent, leader election and HTTP server.

    ``close`` releases the resources of the adapters after everything else has ended. ``key``
    signs tokens between sidecars, if no other keys are configured.
    """

    context: Context
    server: Server
    application: Application
    close: Callable[[], Awaitable[None]]
    key: ClusterKey | None = None
    _shown: set[BrokerId] = field(default_factory=set)

    async def run(
        self,
        stop: asyncio.Event,
        *,
        host: str,
        port: int,
        conditions: Conditions,
        leave_s: float,
    ) -> None:
        """Serve until ``stop`` is set, then leave in order.

        The sidecar resigns as leader, and the agent drains the broker within its own deadline.
        Then, within ``leave_s``, the agent releases any remaining locks and the registration.
        Raises `ClusterDisagrees`: the cluster hashes topics in another way; `ChrootRefused`: the
        nodes below the chroot belong to another cluster; `Displaced`: another sidecar took over
        this broker; `OSError`: the server cannot listen on the address.
        """
        context, application = self.context, self.application
        await self.server.start(host, port)
        try:
            await context.coordination.start()
            watch = context.coordination.on_session(
                lambda state: context.metrics.session_changed(state.connection.value)
            )
            stopping = asyncio.ensure_future(stop.wait())
            working = asyncio.ensure_future(self._work(conditions))
            try:
                await asyncio.wait({stopping, working}, return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    await self._leave(leave_s)
            finally:
                stopping.cancel()
                working.cancel()
                await asyncio.wait({working})
                watch.close()
            if not working.cancelled():
                working.result()
        finally:
            await self.server.stop()
            await application.member.serving_ended()
            application.dynamic.close()
            context.cluster_state.close()
            await context.coordination.close()
            await self.close()
            log.info("sidecar.service.stopped")

    async def _work(self, conditions: Conditions) -> None:
        context, application = self.context, self.application
        context.topic_hash.name = await agree(context.coordination, context.clock, conditions)
        context.cluster_state.open()
        application.dynamic.open()
        log.info("sidecar.service.started", broker=context.identity.broker)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(application.member.run(), name="member")
            tasks.create_task(application.election.run(), name="election")
            tasks.create_task(application.reachability.run(), name="reachability")
            tasks.create_task(read_ahead(context, application.leading), name="reading ahead")
            tasks.create_task(self._agree_again(conditions), name="agreement")
            tasks.create_task(self._show(), name="gauges")
            if self.key is not None:
                tasks.create_task(self.key.run(), name="cluster key")

    async def _agree_again(self, conditions: Conditions) -> None:
        """Repeat the agreement in each new session: the ensemble may be another one, or empty.

        Raises `ClusterDisagrees`: the cluster that is recorded there hashes topics in another way;
        `ChrootRefused`: the nodes there belong to another cluster.
        """
        coordination, clock = self.context.coordination, self.context.clock
        conditions = replace(conditions, hash_name=self.context.topic_hash.name)
        agreed_in = coordination.session.session_id
        while True:
            await clock.sleep(_NEW_SESSION_POLL_S)
            session = coordination.session
            if session.connection is Connection.CONNECTED and session.session_id != agreed_in:
                await agree(coordination, clock, conditions)
                agreed_in = session.session_id

    async def _leave(self, within_s: float) -> None:
        log.info("sidecar.service.stopping")
        try:
            await self.application.election.resign()
        except CoordinationError as error:
            log.warning("leadership.resignation.failed", why=str(error))
        await self.application.member.drain()
        await self.application.member.leave(within_s)

    async def _show(self) -> None:
        while True:
            try:
                self._show_once()
            except Exception as error:  # noqa: BLE001 - a wrong gauge ends nothing
                self.context.unexpected.caught("gauges", error)
            await self.context.clock.sleep(_SHOW_EVERY_S)

    def _show_once(self) -> None:
        context = self.context
        now_s = context.clock.monotonic_s()
        reports = context.cluster_state.loads.reports
        for broker, known in reports.items():
            context.metrics.report_age_seconds.labels(broker).set(now_s - known.seen_at_s)
        context.metrics.brokers_departed(self._shown - reports.keys())
        self._shown = set(reports)
        context.metrics.picture_changed(
            brokers=len(context.cluster_state.brokers),
            bundles=len(context.cluster_state.owners),
            namespaces=context.cluster_state.namespaces,
        )
        leader = context.cluster_state.leader
        context.metrics.leader_epoch.set(leader.epoch if leader else 0)
