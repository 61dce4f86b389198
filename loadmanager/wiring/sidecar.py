import asyncio
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import structlog
import uvloop
from prometheus_client import REGISTRY, CollectorRegistry

from loadmanager import __version__
from loadmanager.adapters.broker.contract import read_secret
from loadmanager.adapters.broker.http_control import HttpBrokerControl, control_url_of
from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.computing import ThreadedComputing
from loadmanager.adapters.history.sink import ThreadedHistory
from loadmanager.adapters.host import PsutilHostProbe
from loadmanager.adapters.host.processes import allow_connections
from loadmanager.adapters.http.assign_client import Credentials, HttpAssignClient
from loadmanager.adapters.http.health_listener import HealthListener, listening_sockets
from loadmanager.adapters.http.http_server import HttpServer
from loadmanager.adapters.http.live.page import Feed, Forwarder, OverviewReader
from loadmanager.adapters.http.operations import Resource
from loadmanager.adapters.http.routes import Role, Route
from loadmanager.adapters.http.security.guard import (
    ClusterKeyGuard,
    Guard,
    Key,
    KeyUnusable,
    OwnNames,
    Rights,
    Tokens,
    host_of,
    sign,
)
from loadmanager.adapters.http.security.tls import ClientTls, TlsFiles
from loadmanager.adapters.seeds import read_seed_file
from loadmanager.adapters.zookeeper import ZooKeeperCoordination, zookeeper_options
from loadmanager.admin.brokers import BalancingModes, Brokers, Configuration
from loadmanager.admin.bundles import Splits, Unloads
from loadmanager.admin.decisions import Plans
from loadmanager.admin.isolation import FailureDomains, Isolation
from loadmanager.admin.namespaces import AntiAffinity, Namespaces, Quotas
from loadmanager.admin.topics import Partitions, Topics
from loadmanager.common.cluster_conditions import ClusterKey, conditions_of
from loadmanager.common.cluster_state import ClusterState
from loadmanager.common.context import Context, Identity, first_leaf, make_identity
from loadmanager.config import Config
from loadmanager.config.model import chroot_of, health_port
from loadmanager.config.sections import (
    SecuritySettings,
    TlsSettings,
)
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.history.records import Origin
from loadmanager.core.hosts import is_loopback
from loadmanager.ports.broker import BrokerControl
from loadmanager.ports.history import NoHistory
from loadmanager.pulsar.sidecar import BesidePulsar, make_pulsar_broker
from loadmanager.telemetry.logging import change_level
from loadmanager.telemetry.metrics import HistoryMetrics, Metrics
from loadmanager.wiring.application import Application, Commanded, Kind, Sidecar


def admin_routes(
    config: Config, context: Context, application: Application, leader_line: HttpAssignClient
) -> list[Route]:
    """Beside a Pulsar broker, its own admin REST has namespaces, topics and policies."""
    cluster = config.cluster.name
    topics = Topics(context, leader_line)
    partitions = Partitions(application.answering, context).routes()
    resources: list[Resource] = [
        Brokers(context, cluster, topics),
        Configuration(context, config, internal_configuration(config)),
        Unloads(application.bundle_requests.unload),
        application.drains,
        BalancingModes(context),
        application.overviews,
        application.explainer,
        Plans(application.leading),
    ]
    if config.broker.kind == "pulsar":
        partitions = [route for route in partitions if route.method == "GET"]
    else:
        resources += _resources_of_namespaces(config, context, application, topics)
    return [*(route for resource in resources for route in resource.routes()), *partitions]


def _resources_of_namespaces(
    config: Config, context: Context, application: Application, topics: Topics
) -> list[Resource]:
    cluster, leading = config.cluster.name, application.leading
    bundles, settings = application.bundle_requests, application.settings
    return [
        Namespaces(context, leading, cluster, default_bundles=config.cluster.default_bundles),
        Splits(bundles.split, bundles.merge, lambda: settings.now.config.split.algorithm),
        AntiAffinity(context, cluster),
        topics,
        Isolation(context, leading, bundles.unload, cluster),
        FailureDomains(context, cluster),
        Quotas(),
    ]


def internal_configuration(config: Config) -> dict[str, str]:
    servers = config.zookeeper.hosts
    return {
        "zookeeperServers": servers,
        "configurationStoreServers": servers,
        "metadataStoreUrl": f"zk:{servers}{chroot_of(config)}",
    }


_OWN_TOKEN_S: Final = 60


def make_guard(config: Config, key: Key, is_sidecar: Callable[[str], bool]) -> Guard:
    """Raises `KeyUnusable`: the key for verifying tokens cannot be read, or is not valid."""
    security, listen_host = config.security, config.sidecar.listen_host
    names = OwnNames(
        local=frozenset(name.lower() for name in config.sidecar.local_names),
        advertised=frozenset(
            {
                host_of(config.sidecar.advertised_url.partition("://")[2]),
                host_of(config.broker.id),
            }
        ),
    )
    if config.uses_cluster_key:
        return ClusterKeyGuard(key, names, lambda url: not _withheld(config, url, is_sidecar))
    anonymous = Role(config.anonymous_right)
    rights = Rights(
        admins=frozenset(security.admins),
        readers=frozenset(security.readers),
        lookup_roles=frozenset(security.lookers),
        anonymous=anonymous,
    )
    local_only = anonymous is Role.ADMIN and is_loopback(listen_host)
    return Guard(rights, _tokens(security), names=names, local_only=local_only)


def make_tls(tls: TlsSettings) -> TlsFiles | None:
    """Raises `TlsFilesUnusable`: the files of TLS cannot be used."""
    if not tls.certificate_file:
        return None
    authorities = _path(tls.client_authorities_file)
    clients = tls.clients if authorities else "none"
    return TlsFiles(Path(tls.certificate_file), Path(tls.key_file), authorities, clients)


def make_leader_line(
    config: Config, key: Key, is_sidecar: Callable[[str], bool]
) -> HttpAssignClient:
    """Return the HTTP client for requests to the leader's sidecar.

    ``key`` returns the key of the cluster, None before it is known. ``is_sidecar`` returns whether
    a registered sidecar advertises a URL; tokens are sent to no other URL. Raises
    `TlsFilesUnusable`: a certificate or key of the client cannot be used; `KeyUnusable`: the token
    of the client cannot be read now.
    """
    tls, token_file = config.tls, config.security.own_token_file
    client = None
    if tls.certificate_file or tls.authorities_file:
        files = (tls.authorities_file, tls.certificate_file, tls.key_file)
        client = ClientTls(*map(_path, files))

    def token() -> str:
        if not config.uses_cluster_key:
            return Path(token_file).read_text(encoding="utf-8").strip() if token_file else ""
        known = key()
        name = f"sidecar of {config.broker.id}"
        return sign(known, name=name, right=Role.READ, valid_s=_OWN_TOKEN_S) if known else ""

    def credentials(url: str) -> Credentials:
        if not (own := token()):
            return Credentials()
        withheld = _withheld(config, url, is_sidecar)
        return Credentials(withheld=withheld) if withheld else Credentials(own)

    try:
        token()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise KeyUnusable(f"{token_file}: {why}; expected a file with a token") from None
    return HttpAssignClient(tls=client, credentials=credentials)


def _withheld(config: Config, url: str, is_sidecar: Callable[[str], bool]) -> str:
    if config.tls.certificate_file and not url.startswith("https:"):
        return "because this sidecar speaks TLS and the other one does not"
    return "" if is_sidecar(url) else "because no registered sidecar advertises this URL"


def _tokens(security: SecuritySettings) -> Tokens | None:
    claim, audience = security.token_claim, security.token_audience
    if path := _path(security.token_secret_key_file):
        return Tokens.of_secret_file(path, claim=claim, audience=audience)
    if path := _path(security.token_public_key_file):
        return Tokens.of_public_key_file(path, claim=claim, audience=audience)
    return None


def _path(text: str) -> Path | None:
    return Path(text) if text else None


log = structlog.get_logger()

_LEAVE_S = 10.0


def run_sidecar(config: Config) -> None:
    """Run one sidecar until SIGTERM or SIGINT.

    Raises:
        ConfigError: a strategy or one of its settings does not exist.
        LoadManagerError: the sidecar had to stop; the message says why.
        OSError: the server cannot listen on the address.
    """
    uvloop.run(_run(config))


async def _run(config: Config) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    port = config.sidecar.listen_port or free_port(config.sidecar.listen_host)
    failure = None
    try:
        async with asyncio.TaskGroup() as commands:
            control_url = ""  # A Pulsar broker takes no commands.
            if config.broker.kind != "pulsar":
                control_url = await control_url_of(config.broker.id, config.broker.control_url)
            sidecar = build_sidecar(config, port, commands, control_url)
            await sidecar.run(
                stop,
                host=config.sidecar.listen_host,
                port=port,
                conditions=conditions_of(config),
                leave_s=_LEAVE_S,
            )
    except* (LoadManagerError, OSError) as failed:
        failure = first_leaf(failed)
    if failure is not None:
        raise failure  # Python before 3.11.4 wraps what is raised in `except*` in a group.


def build_sidecar(
    config: Config, port: int, commands: asyncio.TaskGroup, control_url: str
) -> Sidecar:
    metrics = Metrics(REGISTRY, config.cluster.name)
    clock = SystemClock()
    coordination = ZooKeeperCoordination(zookeeper_options(config), metrics.coordination_asked)
    broker, kind = make_broker(config, control_url)
    identity = make_identity(config, port, clock)
    history = make_history(config, identity)
    context = Context(
        identity=identity,
        coordination=coordination,
        cluster_state=ClusterState(coordination, clock, metrics),
        broker=broker,
        clock=clock,
        metrics=metrics,
        history=history,
        read_seed=partial(read_seed_file, config.history.seed) if config.history.seed else None,
        computing=ThreadedComputing(),
    )
    key = ClusterKey(coordination, clock)
    leader_line = make_leader_line(config, lambda: key.value, context.cluster_state.advertises)
    application = Application(
        config,
        context,
        sample_host=PsutilHostProbe(config.host).sample,
        ask_leader=leader_line.assign,
        commands=commands,
        rng=np.random.default_rng(),
        kind=kind,
    )

    async def close() -> None:
        await leader_line.close()
        await broker.close()
        if isinstance(history, ThreadedHistory):
            await asyncio.to_thread(history.close, _LEAVE_S)

    server = make_server(config, context, application, leader_line, lambda: key.value)

    def apply(changed: Config) -> None:
        server.tune(changed.lookup)
        change_level(changed.log.level)

    application.settings.follow(apply)
    return Sidecar(
        context,
        server,
        application,
        close,
        key=key if config.uses_cluster_key else None,
    )


def make_broker(config: Config, control_url: str) -> tuple[BrokerControl, Kind]:
    """Raises `SecretUnusable` or `TlsFilesUnusable`: a configured file cannot be used."""
    if config.broker.kind == "pulsar":
        pulsar = make_pulsar_broker(config)
        return pulsar, BesidePulsar(pulsar, config.cluster.name)
    broker = config.broker
    if exposure := broker.exposure(control_url):
        log.warning("broker.control.exposed", why=exposure)
    secret = read_secret(Path(broker.control_secret_file)) if broker.control_secret_file else ""
    control = HttpBrokerControl(control_url, broker.control_timeout_s, secret=secret)
    return control, Commanded()


def make_server(
    config: Config,
    context: Context,
    application: Application,
    leader_line: HttpAssignClient,
    key: Key,
) -> HttpServer:
    allow_connections(config.http.max_connections)
    is_sidecar = context.cluster_state.advertises
    return HttpServer(
        application.answering,
        metrics=context.metrics.lookup,
        registry=REGISTRY,
        version=__version__,
        settings=config.http,
        lookups=config.lookup,
        guard=make_guard(config, key, is_sidecar),
        tls=make_tls(config.tls),
        tls_refresh_s=config.tls.refresh_interval_s,
        count_failure=context.metrics.unexpected_errors.labels("request").inc,
        more_routes=admin_routes(config, context, application, leader_line),
        feed=Feed(
            OverviewReader(application.overviews.overview, context.identity.broker, leader_line)
        ),
        forwarder=Forwarder(leader_line, lambda url: _withheld(config, url, is_sidecar)),
        health=HealthListener(
            application.answering.readiness,
            port=health_port(config.sidecar),
            late=context.metrics.event_loop_lag_seconds.observe,
            stalled=context.metrics.event_loop_stalls.inc,
            overdue=context.liveness.overdue,
        ),
        refused=context.metrics.http_refused,
    )


def make_history(
    config: Config, identity: Identity, registry: CollectorRegistry = REGISTRY
) -> ThreadedHistory | NoHistory:
    if not config.history.dir:
        return NoHistory()
    origin = Origin(config.cluster.name, identity.broker, identity.instance)
    history = ThreadedHistory(config.history, origin, HistoryMetrics(registry))
    history.start()
    return history


def free_port(host: str) -> int:
    """The advertised URL must be known before the server listens."""
    opened = listening_sockets(host, 0, backlog=1)
    port = int(opened[0].getsockname()[1])
    for one in opened:
        one.close()
    return port
