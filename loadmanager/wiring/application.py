"""Joins the parts of the application to one another, on whatever adapters they are given."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from loadmanager.admin.drains import DrainRequests
from loadmanager.admin.merges import MergeRequests
from loadmanager.admin.splits import SplitRequests
from loadmanager.admin.unloads import UnloadRequests
from loadmanager.agent.agent import Agent
from loadmanager.agent.broker_health import HealthWatch
from loadmanager.agent.drain_intent import Intention
from loadmanager.agent.lease import LeaseTerms
from loadmanager.agent.load_reports import Publisher, Sampler
from loadmanager.agent.ownership_worker import Ownerships
from loadmanager.agent.owning_agent import Member
from loadmanager.agent.shutdown import Leaving
from loadmanager.agent.splits import Splitter
from loadmanager.common.context import Parts
from loadmanager.common.dynamic_settings import DynamicSettings
from loadmanager.common.reachability import Reachability
from loadmanager.common.runtime_settings import Tuning
from loadmanager.common.settings_watch import Retuning, tuned_by
from loadmanager.config import Config
from loadmanager.core.health import HealthRules
from loadmanager.core.ids import BundleId, belongs_to_a_broker
from loadmanager.core.lookup import LookupMode
from loadmanager.leader.election import Election, Term
from loadmanager.leader.explain import Accounting
from loadmanager.leader.leadership import Leading
from loadmanager.leader.successor import Readiness
from loadmanager.leader.term import Desk, ForeignTerm
from loadmanager.lookup.owner_resolver import Naming, OwnBundles
from loadmanager.lookup.service import Answering
from loadmanager.ports import HostProbe, LeaderLine

_SPLIT_WAIT_S = 15.0
_MERGE_WAIT_S = 30.0
_UNLOAD_WAIT_S = 15.0


@dataclass(frozen=True, slots=True)
class Application:
    """The parts of one sidecar that do its work, whatever adapters they stand on."""

    member: Agent
    leading: Leading
    election: Election
    readiness: Readiness
    answering: Answering
    reachability: Reachability
    split_requests: SplitRequests
    merge_requests: MergeRequests
    unload_requests: UnloadRequests
    drain_requests: DrainRequests
    accounting: Accounting
    dynamic: DynamicSettings
    tuning: Tuning
    retuning: Retuning


class Kind(Protocol):
    """How brokers of one kind are kept in the cluster, looked up and led."""

    def agent(
        self,
        config: Config,
        parts: Parts,
        publisher: Publisher,
        tuning: Tuning,
        commands: asyncio.TaskGroup,
    ) -> tuple[Agent, OwnBundles]:
        """Return the agent of this sidecar's broker, and the bundles that it serves."""

    @property
    def answering(self) -> Callable[..., Answering]:
        """Make what answers lookups, of the arguments of `Answering`."""

    def stays(self, bundle: BundleId, /) -> bool:
        """Say whether a bundle never moves, by its name."""

    def term(self, parts: Parts, term: Term, /) -> ForeignTerm | None:
        """Return what a term needs that commands no agents, None for one that does."""


class Commanded:
    """Brokers that their agents command: they serve what they are told to, under a lease."""

    def agent(
        self,
        config: Config,
        parts: Parts,
        publisher: Publisher,
        tuning: Tuning,
        commands: asyncio.TaskGroup,
    ) -> tuple[Agent, OwnBundles]:
        """See `Kind`."""
        ownerships = make_ownerships(parts, commands)
        return make_member(config, parts, ownerships, publisher, tuning), ownerships

    @property
    def answering(self) -> Callable[..., Answering]:
        """See `Kind`."""
        return Answering

    def stays(self, bundle: BundleId, /) -> bool:
        """See `Kind`."""
        return belongs_to_a_broker(bundle)

    def term(self, _parts: Parts, _term: Term) -> ForeignTerm | None:
        """See `Kind`."""
        return None


_COMMANDED: Final = Commanded()


def join(
    config: Config,
    parts: Parts,
    *,
    probe: HostProbe,
    leader_line: LeaderLine,
    commands: asyncio.TaskGroup,
    rng: np.random.Generator,
    kind: Kind = _COMMANDED,
) -> Application:
    """Join the application on given adapters; ``rng`` is for jitter and for equal choices."""
    tuning = Tuning(tuned_by(config))
    dynamic = DynamicSettings(parts, config)
    retuning = Retuning(config, tuning)
    dynamic.subscribe(retuning.changed)

    def open_desk(term: Term) -> Desk:
        return Desk(
            parts,
            term,
            tuning,
            cluster=config.cluster.name,
            rng=rng,
            foreign=kind.term(parts, term),
            base_every_rounds=config.history.base_every_rounds,
            seed_max_age_days=config.history.seed_max_age_days,
        )

    sampler = Sampler(parts, probe, Intention(), config.history.broker_class)
    publisher = Publisher(parts, sampler, tuning, draw=rng.random)
    member, own = kind.agent(config, parts, publisher, tuning, commands)
    reachability = Reachability(parts)
    leading = Leading(open_desk, parts)
    answering = kind.answering(
        parts,
        Naming(parts, own),
        leader_line,
        leading,
        mode=LookupMode(config.lookup.mode),
        tuning=tuning,
        unready=lambda: (*member.unready(), *reachability.unready()),
    )
    election = Election(
        parts,
        eligible=lambda: member.registered,
        lead=leading.lead,
        barred=lambda: bool(reachability.why),
    )
    split_requests = SplitRequests(parts, leading, _SPLIT_WAIT_S)
    accounting = Accounting(parts, leading, config.cluster.name)
    unload_requests = UnloadRequests(
        parts,
        leading,
        tuning=tuning,
        wait_s=_UNLOAD_WAIT_S,
    )
    return Application(
        member,
        leading,
        election,
        Readiness(parts, leading),
        answering,
        reachability,
        split_requests,
        MergeRequests(parts, leading, tuning=tuning, wait_s=_MERGE_WAIT_S),
        unload_requests,
        DrainRequests(parts, kind.stays),
        accounting,
        dynamic,
        tuning,
        retuning,
    )


def make_ownerships(parts: Parts, commands: asyncio.TaskGroup) -> Ownerships:
    """Return the bundles of this broker: none yet; ``commands`` runs what it is told."""
    me, owners = parts.identity.broker, parts.picture.owners

    def claimed_elsewhere(bundle: BundleId) -> bool:
        holding = owners.get(bundle)
        return holding is not None and holding.broker != me

    def next_owner_url(bundle: BundleId) -> str:
        planned = ownerships.handovers.get(bundle)
        known = parts.picture.brokers.get(planned) if planned else None
        return known.registration.urls.broker_url if known else ""

    ownerships = Ownerships(
        parts.broker,
        parts.metrics,
        claimed_elsewhere=claimed_elsewhere,
        tasks=commands,
        next_owner_url=next_owner_url,
    )
    return ownerships


def make_member(
    config: Config,
    parts: Parts,
    ownerships: Ownerships,
    publisher: Publisher,
    tuning: Tuning,
) -> Member:
    """Join the parts that keep this broker in the cluster."""
    terms = LeaseTerms(
        config.ownership.self_fence_fraction,
        config.ownership.heartbeat_fraction,
        config.zookeeper.tick_s,
    )
    splitter = Splitter(parts, ownerships, tuning)
    return Member(
        parts,
        ownerships,
        health=HealthWatch(parts, publisher.sampler, health_rules(config)),
        publisher=publisher,
        splitter=splitter,
        lease_terms=terms,
        leaving=Leaving(parts, ownerships, tuning),
    )


def health_rules(config: Config) -> HealthRules:
    """Return how the broker is asked after its health."""
    broker = config.broker
    return HealthRules(
        interval_s=broker.health_interval_s,
        timeout_s=broker.health_timeout_s,
        unhealthy_after=broker.unhealthy_after,
        healthy_after=broker.healthy_after,
    )
