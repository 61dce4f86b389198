"""Joins the parts of the application to one another, on whatever adapters they are given."""

import asyncio
from dataclasses import dataclass

import numpy as np

from loadmanager.app.accounting import Accounting
from loadmanager.app.answering import Answering
from loadmanager.app.desk import Desk
from loadmanager.app.drain_requests import DrainRequests
from loadmanager.app.electing import Election, Term
from loadmanager.app.health import HealthWatch
from loadmanager.app.intention import Intention
from loadmanager.app.leading import Leading
from loadmanager.app.leasing import LeaseTerms
from loadmanager.app.leaving import Leaving
from loadmanager.app.member import Member
from loadmanager.app.naming import Naming
from loadmanager.app.owning import Ownerships
from loadmanager.app.parts import Parts
from loadmanager.app.publishing import Publisher, Sampler
from loadmanager.app.rounds import Rhythm
from loadmanager.app.split_desk import SplitPolicy
from loadmanager.app.split_requests import SplitRequests
from loadmanager.app.splitting import Splitter
from loadmanager.app.unload_requests import UnloadRequests
from loadmanager.config import Config
from loadmanager.config.planning import planner_of, split_limits_of, split_rules_of
from loadmanager.core.health import HealthRules
from loadmanager.core.ids import BundleId
from loadmanager.core.lookup import LookupMode
from loadmanager.core.planner import Planner
from loadmanager.core.report import ReportRules
from loadmanager.ports import HostProbe, LeaderLine

_SPLIT_WAIT_S = 15.0
_UNLOAD_WAIT_S = 15.0


def make_planner(config: Config) -> Planner:
    """Return the planner that the configuration asks for.

    Raises:
        ConfigError: a strategy or one of its settings does not exist.
    """
    return planner_of(config.shedding, config.placement, config.planner, config.leader)


@dataclass(frozen=True, slots=True)
class Application:
    """The parts of one sidecar that do its work, whatever adapters they stand on."""

    member: Member
    leading: Leading
    election: Election
    answering: Answering
    split_requests: SplitRequests
    unload_requests: UnloadRequests
    drain_requests: DrainRequests
    accounting: Accounting


def join(
    config: Config,
    planner: Planner,
    parts: Parts,
    *,
    probe: HostProbe,
    leader_line: LeaderLine,
    commands: asyncio.TaskGroup,
    rng: np.random.Generator,
) -> Application:
    """Join the application on given adapters; ``rng`` is for jitter and for equal choices."""
    rhythm = Rhythm(
        tick_interval_s=config.leader.tick_interval_s,
        round_interval_s=config.leader.round_interval_s,
        return_wait_s=config.leader.return_wait_s,
    )

    split_policy = make_split_policy(config)

    def open_desk(term: Term) -> Desk:
        return Desk(
            parts,
            term,
            planner,
            rhythm=rhythm,
            split_policy=split_policy,
            cluster=config.cluster.name,
            rng=rng,
        )

    ownerships = make_ownerships(parts, commands)
    member = make_member(config, parts, ownerships, probe, rng)
    leading = Leading(open_desk, parts.metrics)
    answering = Answering(
        parts,
        Naming(parts, ownerships),
        leader_line,
        leading,
        hash_name=config.cluster.hash,
        mode=LookupMode(config.lookup.mode),
        wait_s=config.lookup.wait_s,
    )
    election = Election(parts, eligible=lambda: member.registered, lead=leading.lead)
    split_requests = SplitRequests(parts, leading, _SPLIT_WAIT_S)
    accounting = Accounting(parts, leading, config.cluster.name)
    unload_requests = UnloadRequests(
        parts,
        leading,
        max_report_age_s=planner.filters.max_report_age_s,
        most_under_way=planner.settings.in_flight_per_broker,
        wait_s=_UNLOAD_WAIT_S,
    )
    return Application(
        member,
        leading,
        election,
        answering,
        split_requests,
        unload_requests,
        DrainRequests(parts),
        accounting,
    )


def make_ownerships(parts: Parts, commands: asyncio.TaskGroup) -> Ownerships:
    """Return the bundles of this broker: none yet; ``commands`` runs what it is told."""
    me, owners = parts.identity.broker, parts.picture.owners

    def claimed_elsewhere(bundle: BundleId) -> bool:
        holding = owners.get(bundle)
        return holding is not None and holding.broker != me

    return Ownerships(
        parts.broker, parts.metrics, claimed_elsewhere=claimed_elsewhere, tasks=commands
    )


def make_member(
    config: Config,
    parts: Parts,
    ownerships: Ownerships,
    probe: HostProbe,
    rng: np.random.Generator,
) -> Member:
    """Join the parts that keep this broker in the cluster."""
    sampler = Sampler(parts, probe, Intention())
    report = config.report
    publisher = Publisher(
        parts,
        sampler,
        ReportRules(
            min_interval_s=report.min_interval_s,
            max_interval_s=report.max_interval_s,
            change_fraction=report.change_fraction,
            change_points=report.change_points,
            jitter_fraction=report.jitter_fraction,
        ),
        sample_interval_s=report.sample_interval_s,
        draw=rng.random,
    )
    terms = LeaseTerms(config.ownership.self_fence_fraction, config.ownership.heartbeat_fraction)
    limits = split_limits_of(config.split, config.planner)
    splitter = Splitter(parts, ownerships, limits, config.cluster.hash)
    return Member(
        parts,
        ownerships,
        sampler=sampler,
        health=HealthWatch(parts, sampler, health_rules(config)),
        publisher=publisher,
        splitter=splitter,
        lease_terms=terms,
        leaving=Leaving(parts, ownerships, config.ownership.drain_deadline_s),
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


def make_split_policy(config: Config) -> SplitPolicy:
    """Return when and how the leader has bundles cut."""
    split = config.split
    return SplitPolicy(
        enabled=split.enabled,
        rules=split_rules_of(split, config.planner),
        algorithm=split.algorithm,
        most_per_round=split.max_splits_per_round,
    )
