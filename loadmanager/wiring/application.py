import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final, Protocol

import numpy as np
import structlog

from loadmanager.admin.brokers import Drains
from loadmanager.admin.bundles import BundleRequests
from loadmanager.admin.decisions import Decisions
from loadmanager.admin.overview import OverviewRequests
from loadmanager.agent.load_reports import DrainIntent, HealthWatch, Publisher, Sampler
from loadmanager.agent.ownership import OwnershipWorker
from loadmanager.agent.owning_agent import OwningAgent, Shutdown
from loadmanager.agent.registration import Agent, LeaseTerms
from loadmanager.agent.splits import Splitter
from loadmanager.common.cluster_conditions import ClusterKey, Conditions, agree
from loadmanager.common.context import Context, Reachability
from loadmanager.common.runtime_settings import RuntimeSettings
from loadmanager.config import Config
from loadmanager.core.health import HealthRules
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.core.load import HostUsage
from loadmanager.leader.election import Election, Term
from loadmanager.leader.term import ForeignTerm, Leadership, LeaderTerm, read_ahead
from loadmanager.lookup.service import LookupService, OwnBundles, OwnerResolver
from loadmanager.ports.coordination import Connection, CoordinationError
from loadmanager.ports.lookup import AskLeader
from loadmanager.pulsar.sidecar import BesidePulsar


class Commanded:
    def agent(
        self,
        config: Config,
        context: Context,
        publisher: Publisher,
        settings: RuntimeSettings,
        commands: asyncio.TaskGroup,
    ) -> tuple[Agent, OwnBundles]:
        ownerships = make_ownerships(context, commands)
        broker, ownership = config.broker, config.ownership
        rules = HealthRules(
            interval_s=broker.health_interval_s,
            timeout_s=broker.health_timeout_s,
            unhealthy_after=broker.unhealthy_after,
            healthy_after=broker.healthy_after,
        )
        terms = LeaseTerms(
            ownership.self_fence_fraction, ownership.heartbeat_fraction, config.zookeeper.tick_s
        )
        member = OwningAgent(
            context,
            ownerships,
            health=HealthWatch(context, publisher.sampler, rules),
            publisher=publisher,
            splitter=Splitter(context, ownerships, settings),
            lease_terms=terms,
            leaving=Shutdown(context, ownerships, settings),
        )
        return member, ownerships

    @property
    def answering(self) -> Callable[..., LookupService]:
        return LookupService

    def stays(self, bundle: BundleId, /) -> bool:
        return belongs_to_a_broker(bundle)

    def term(self, _context: Context, _term: Term) -> ForeignTerm | None:
        return None


Kind = Commanded | BesidePulsar
"""The kind of a sidecar's broker: its agent, lookups, and parts of a leader's term."""

_COMMANDED: Final = Commanded()


class Application:
    """The parts of one sidecar that do not depend on the adapters in use.

    ``sample_host`` is `PsutilHostProbe.sample`. ``rng`` draws jitter and breaks ties. ``commands``
    runs the commands to the broker.
    """

    def __init__(
        self,
        config: Config,
        context: Context,
        *,
        sample_host: Callable[..., HostUsage],
        ask_leader: AskLeader,
        commands: asyncio.TaskGroup,
        rng: np.random.Generator,
        kind: Kind = _COMMANDED,
    ) -> None:
        cluster = config.cluster.name
        self.settings = settings = RuntimeSettings(config)

        def open_term(term: Term) -> LeaderTerm:
            return LeaderTerm(
                context,
                term,
                settings,
                cluster=cluster,
                rng=rng,
                foreign=kind.term(context, term),
                base_every_rounds=config.history.base_every_rounds,
                seed_max_age_days=config.history.seed_max_age_days,
            )

        sampler = Sampler(context, sample_host, DrainIntent(), config.history.broker_class)
        publisher = Publisher(context, sampler, settings, draw=rng.random)
        self.member, own = kind.agent(config, context, publisher, settings, commands)
        self.reachability = Reachability(context)
        self.leading = Leadership(open_term, context)
        self.answering = kind.answering(
            context,
            OwnerResolver(context, own),
            ask_leader,
            self.leading.assign,
            settings=settings,
            unready=lambda: filter(None, (*self.member.unready(), self.reachability.why)),
        )
        self.election = Election(
            context,
            eligible=lambda: self.member.registered,
            lead=self.leading.lead,
            barred=lambda: bool(self.reachability.why),
            liveness=context.liveness,
        )
        self.bundle_requests = BundleRequests(context, self.leading, settings)
        self.drains = Drains(context, kind.stays)
        self.explainer = Decisions(context, self.leading, cluster)
        self.overviews = OverviewRequests(
            context,
            self.leading,
            self.explainer,
            cluster=cluster,
            splits=config.broker.kind != "pulsar",
        )


def make_ownerships(context: Context, commands: asyncio.TaskGroup) -> OwnershipWorker:
    me, lists = context.identity.broker, context.cluster_state.lists

    def claimed_elsewhere(bundle: BundleId) -> bool:
        holding = lists.holdings.get(bundle)
        if holding is None or holding.broker == me:
            return False
        lists.read_list(holding.broker)
        return True

    def next_owner_url(bundle: BundleId) -> str:
        planned = ownerships.handovers.get(bundle)
        known = context.cluster_state.brokers.get(planned) if planned else None
        return known.registration.urls.broker_url if known else ""

    ownerships = OwnershipWorker(
        context.broker,
        context.metrics,
        claimed_elsewhere=claimed_elsewhere,
        tasks=commands,
        next_owner_url=next_owner_url,
    )

    def awaits(broker: BrokerId) -> bool:
        listed = map(lists.holdings.get, ownerships.records.unsettled)
        return any(holding is not None and holding.broker == broker for holding in listed)

    lists.follow_while(awaits)
    return ownerships


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
            application.settings.close()
            context.cluster_state.close()
            await context.coordination.close()
            await self.close()
            log.info("sidecar.service.stopped")

    async def _work(self, conditions: Conditions) -> None:
        context, application = self.context, self.application
        context.topic_hash.name = await agree(context.coordination, context.clock, conditions)
        context.cluster_state.open()
        application.settings.open(context)
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
