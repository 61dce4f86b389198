import asyncio
from collections.abc import Callable
from typing import Final

import numpy as np

from loadmanager.admin.brokers import DrainRequests
from loadmanager.admin.bundles import MergeRequests, SplitRequests, UnloadRequests
from loadmanager.admin.decisions import Explainer
from loadmanager.admin.overview import OverviewRequests
from loadmanager.agent.load_reports import DrainIntent, HealthWatch, Publisher, Sampler
from loadmanager.agent.ownership import OwnershipWorker
from loadmanager.agent.owning_agent import OwningAgent, Shutdown
from loadmanager.agent.registration import Agent, LeaseTerms
from loadmanager.agent.splits import Splitter
from loadmanager.common.context import Context, Reachability
from loadmanager.common.runtime_settings import (
    DynamicSettings,
    RuntimeSettings,
    SettingsWatch,
    runtime_values,
)
from loadmanager.config import Config
from loadmanager.core.health import HealthRules
from loadmanager.core.ids import BrokerId, BundleId, belongs_to_a_broker
from loadmanager.core.lookup import LookupMode
from loadmanager.leader.election import Election, Term
from loadmanager.leader.term import ForeignTerm, Leadership, LeaderTerm
from loadmanager.lookup.service import LookupService, OwnBundles, OwnerResolver
from loadmanager.ports.host import HostProbe
from loadmanager.ports.lookup import LeaderLine
from loadmanager.pulsar.sidecar import BesidePulsar

_SPLIT_WAIT_S: Final = 15.0
_MERGE_WAIT_S: Final = 30.0
_UNLOAD_WAIT_S: Final = 15.0


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

    ``rng`` draws jitter and breaks ties. ``commands`` runs the commands to the broker.
    """

    def __init__(
        self,
        config: Config,
        context: Context,
        *,
        probe: HostProbe,
        leader_line: LeaderLine,
        commands: asyncio.TaskGroup,
        rng: np.random.Generator,
        kind: Kind = _COMMANDED,
    ) -> None:
        cluster = config.cluster.name
        self.settings = settings = RuntimeSettings(runtime_values(config))
        self.dynamic = DynamicSettings(context, config)
        self.retuning = SettingsWatch(config, settings)
        self.dynamic.subscribe(self.retuning.changed)

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

        sampler = Sampler(context, probe, DrainIntent(), config.history.broker_class)
        publisher = Publisher(context, sampler, settings, draw=rng.random)
        self.member, own = kind.agent(config, context, publisher, settings, commands)
        self.reachability = Reachability(context)
        self.leading = Leadership(open_term, context)
        self.answering = kind.answering(
            context,
            OwnerResolver(context, own),
            leader_line,
            self.leading,
            mode=LookupMode(config.lookup.mode),
            settings=settings,
            unready=lambda: (*self.member.unready(), *self.reachability.unready()),
        )
        self.election = Election(
            context,
            eligible=lambda: self.member.registered,
            lead=self.leading.lead,
            barred=lambda: bool(self.reachability.why),
            liveness=context.liveness,
        )
        self.split_requests = SplitRequests(context, self.leading, _SPLIT_WAIT_S)
        self.merge_requests = MergeRequests(
            context, self.leading, settings=settings, wait_s=_MERGE_WAIT_S
        )
        self.unload_requests = UnloadRequests(
            context, self.leading, settings=settings, wait_s=_UNLOAD_WAIT_S
        )
        self.drain_requests = DrainRequests(context, kind.stays)
        self.explainer = Explainer(context, self.leading, cluster)
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
