"""Joins adapters to the application: the only module that knows both."""

import asyncio
import secrets
import signal
import socket
from dataclasses import dataclass

import numpy as np
import uvloop
from prometheus_client import REGISTRY

from loadmanager import __version__
from loadmanager.adapters.broker.http_control import HttpBrokerControl
from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.adapters.http import DoorSettings, HttpDoor, HttpLeaderLine
from loadmanager.adapters.http.accounts import Accounts
from loadmanager.adapters.http.drains import Drains
from loadmanager.adapters.http.splits import Splits
from loadmanager.adapters.http.unloads import Unloads
from loadmanager.adapters.zookeeper import ZooKeeperCoordination, ZooKeeperOptions
from loadmanager.app.accounting import Accounting
from loadmanager.app.answering import Answering
from loadmanager.app.desk import Desk, Rhythm
from loadmanager.app.drain_requests import DrainRequests
from loadmanager.app.electing import Election, Term
from loadmanager.app.identity import Identity
from loadmanager.app.intention import Intention
from loadmanager.app.leading import Leading
from loadmanager.app.leasing import LeaseTerms
from loadmanager.app.member import Member
from loadmanager.app.owning import Ownerships
from loadmanager.app.parts import Parts
from loadmanager.app.picture import ClusterPicture
from loadmanager.app.publishing import Publisher, Sampler
from loadmanager.app.service import Sidecar
from loadmanager.app.split_desk import SplitPolicy
from loadmanager.app.split_requests import SplitRequests
from loadmanager.app.splitting import Splitter
from loadmanager.app.unload_requests import UnloadRequests
from loadmanager.config import Config, ZookeeperSettings
from loadmanager.config.planning import planner_of, split_limits_of, split_rules_of
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BundleId
from loadmanager.core.load import BrokerUrls
from loadmanager.core.lookup import LookupMode
from loadmanager.core.planner import Planner
from loadmanager.core.report import ReportRules
from loadmanager.ports import Clock, HostProbe, LeaderLine
from loadmanager.telemetry.metrics import Metrics

_LEAVE_S = 10.0
_SPLIT_WAIT_S = 15.0
_UNLOAD_WAIT_S = 15.0


def run_sidecar(config: Config) -> None:
    """Run one sidecar until SIGTERM or SIGINT.

    Raises:
        ConfigError: a strategy or one of its settings does not exist.
        LoadManagerError: the sidecar had to stop by itself; the message says why.
        OSError: the address cannot be listened on.
    """
    uvloop.run(_run(config))


async def _run(config: Config) -> None:
    planner = make_planner(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    port = config.sidecar.listen_port or free_port(config.sidecar.listen_host)
    try:
        async with asyncio.TaskGroup() as commands:
            sidecar = build_sidecar(config, planner, port, commands)
            await sidecar.run(
                stop,
                host=config.sidecar.listen_host,
                port=port,
                hash_name=config.cluster.hash,
                leave_s=_LEAVE_S,
            )
    except* (LoadManagerError, OSError) as failed:
        raise first_leaf(failed) from failed


def make_planner(config: Config) -> Planner:
    """Return the planner that the configuration asks for.

    Raises:
        ConfigError: a strategy or one of its settings does not exist.
    """
    return planner_of(config.shedding, config.placement, config.planner, config.leader)


def build_sidecar(
    config: Config, planner: Planner, port: int, commands: asyncio.TaskGroup
) -> Sidecar:
    """Join all parts of one sidecar that will listen on ``port``."""
    metrics = Metrics(REGISTRY, config.cluster.name)
    clock = SystemClock()
    coordination = ZooKeeperCoordination(
        zookeeper_options(config.zookeeper), metrics.coordination_asked
    )
    broker = HttpBrokerControl(config.broker.control_url, config.broker.control_timeout_s)
    leader_line = HttpLeaderLine()
    parts = Parts(
        identity=make_identity(config, port, clock),
        coordination=coordination,
        picture=ClusterPicture(coordination, clock, metrics),
        broker=broker,
        clock=clock,
        metrics=metrics,
    )
    application = join(
        config,
        planner,
        parts,
        probe=PsutilHostProbe(config.host),
        leader_line=leader_line,
        commands=commands,
        rng=np.random.default_rng(),
    )

    async def close() -> None:
        await leader_line.close()
        await broker.close()

    door = make_door(config, application, metrics)
    return Sidecar(parts, door, application.member, application.election, close)


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

    member = make_member(config, parts, probe, commands, rng)
    leading = Leading(open_desk, parts.metrics)
    answering = Answering(
        parts,
        leader_line,
        leading,
        hash_name=config.cluster.hash,
        mode=LookupMode(config.lookup.mode),
        wait_s=config.lookup.wait_s,
    )
    election = Election(parts, eligible=lambda: member.registered, lead=leading.lead)
    split_requests = SplitRequests(parts, leading, _SPLIT_WAIT_S)
    accounting = Accounting(parts, leading, planner, config.cluster.name)
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


def make_member(
    config: Config,
    parts: Parts,
    probe: HostProbe,
    commands: asyncio.TaskGroup,
    rng: np.random.Generator,
) -> Member:
    """Join the parts that keep this broker in the cluster."""
    me, owners = parts.identity.broker, parts.picture.owners

    def claimed_elsewhere(bundle: BundleId) -> bool:
        holding = owners.get(bundle)
        return holding is not None and holding.broker != me

    ownerships = Ownerships(
        parts.broker, parts.metrics, claimed_elsewhere=claimed_elsewhere, tasks=commands
    )
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
        publisher=publisher,
        splitter=splitter,
        lease_terms=terms,
        drain_deadline_s=config.ownership.drain_deadline_s,
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


def make_door(config: Config, application: Application, metrics: Metrics) -> HttpDoor:
    """Return the HTTP server in front of the application."""
    return HttpDoor(
        application.answering,
        metrics=metrics.lookup,
        registry=REGISTRY,
        version=__version__,
        settings=DoorSettings(
            mode=config.lookup.mode,
            max_concurrent=config.lookup.max_concurrent,
            retry_after_s=config.lookup.retry_after_s,
            default_bundles=config.cluster.default_bundles,
            max_body_bytes=config.http.max_body_bytes,
            max_url_bytes=config.http.max_url_bytes,
        ),
        more_routes=[
            *Splits(application.split_requests, config.split.algorithm).routes(),
            *Unloads(application.unload_requests).routes(),
            *Drains(application.drain_requests).routes(),
            *Accounts(application.accounting).routes(),
        ],
    )


def make_identity(config: Config, port: int, clock: Clock) -> Identity:
    """Return who this sidecar is; the instance is drawn anew at each start."""
    host = config.sidecar.listen_host
    shown_host = f"[{host}]" if ":" in host else host
    return Identity(
        broker=config.broker.id,
        urls=BrokerUrls(
            http_url=config.broker.http_url,
            http_url_tls=config.broker.http_url_tls,
            broker_url=config.broker.broker_url,
            broker_url_tls=config.broker.broker_url_tls,
        ),
        sidecar_url=config.sidecar.advertised_url or f"http://{shown_host}:{port}",
        instance=secrets.token_hex(8),
        started_at_ms=clock.wall_ms(),
        version=config.broker.version,
    )


def zookeeper_options(settings: ZookeeperSettings) -> ZooKeeperOptions:
    """Return how to reach ZooKeeper and log in there."""
    return ZooKeeperOptions(
        hosts=settings.hosts,
        chroot=settings.chroot,
        session_timeout_s=settings.session_timeout_s,
        digest_user=settings.digest_user,
        digest_password=settings.digest_password.get_secret_value(),
        sasl_mechanism=settings.sasl_mechanism,
        sasl_username=settings.sasl_username,
        sasl_password=settings.sasl_password.get_secret_value(),
        tls_ca_file=settings.tls_ca_file,
        tls_certificate_file=settings.tls_certificate_file,
        tls_key_file=settings.tls_key_file,
    )


def free_port(host: str) -> int:
    """Return a port that is free now; the advertised URL must be known before listening."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def first_leaf(group: BaseExceptionGroup[Exception]) -> BaseException:
    """Return the first exception in a group of groups."""
    first: BaseException = group
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
