"""The whole configuration, and the checks that span several keys."""

from collections.abc import Iterator
from typing import Final, Literal, Self

from pydantic import Field, ValidationInfo, model_validator

from loadmanager.config.forms import Contradiction, Section
from loadmanager.config.sections import (
    EVERY_ADDRESS,
    HEALTH_PORT_OFFSET,
    HIGHEST_PORT,
    BrokerSettings,
    ClusterSettings,
    HistorySettings,
    HostSettings,
    HttpSettings,
    LeaderSettings,
    LogSettings,
    LookupSettings,
    OwnershipSettings,
    PlacementSettings,
    PlannerSettings,
    PulsarSettings,
    ReportSettings,
    SecuritySettings,
    SheddingSettings,
    SidecarSettings,
    SplitSettings,
    TlsSettings,
    ZookeeperSettings,
)
from loadmanager.core.hosts import is_loopback
from loadmanager.core.ids import BrokerId
from loadmanager.core.lease import longest_lease_fraction

CONTRADICTIONS_ALLOWED: Final = "contradictions allowed"
"""Context of a validation that checks each key alone; see `contradictions`."""


class Config(Section):
    """Every setting of a sidecar, checked. Made by `load_config`."""

    broker: BrokerSettings
    sidecar: SidecarSettings = Field(default_factory=SidecarSettings)
    pulsar: PulsarSettings = Field(default_factory=PulsarSettings)
    cluster: ClusterSettings = Field(default_factory=ClusterSettings)
    zookeeper: ZookeeperSettings = Field(default_factory=ZookeeperSettings)
    host: HostSettings = Field(default_factory=HostSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    leader: LeaderSettings = Field(default_factory=LeaderSettings)
    shedding: SheddingSettings = Field(default_factory=SheddingSettings)
    placement: PlacementSettings = Field(default_factory=PlacementSettings)
    planner: PlannerSettings = Field(default_factory=PlannerSettings)
    split: SplitSettings = Field(default_factory=SplitSettings)
    ownership: OwnershipSettings = Field(default_factory=OwnershipSettings)
    lookup: LookupSettings = Field(default_factory=LookupSettings)
    http: HttpSettings = Field(default_factory=HttpSettings)
    tls: TlsSettings = Field(default_factory=TlsSettings)
    security: SecuritySettings = Field(default_factory=SecuritySettings)
    history: HistorySettings = Field(default_factory=HistorySettings)
    log: LogSettings = Field(default_factory=LogSettings)

    @property
    def uses_cluster_key(self) -> bool:
        """Whether tokens are signed with the cluster's own key: nothing else is configured."""
        return self.security == SecuritySettings() and not self.tls.client_authorities_file

    @property
    def has_proofs(self) -> bool:
        return self.security.has_tokens or bool(self.tls.client_authorities_file)

    @property
    def anonymous_right(self) -> Literal["none", "lookup", "read", "admin"]:
        if self.security.anonymous != "auto":
            return self.security.anonymous
        is_open = is_loopback(self.sidecar.listen_host) and not self.has_proofs
        return "admin" if is_open else "none"

    @model_validator(mode="after")
    def _derive_addresses(self) -> Self:
        """Fill in where the sidecar listens, and its URL unless the port is not known yet."""
        sidecar, keyed = self.sidecar, self.uses_cluster_key
        host = sidecar.listen_host or ("" if keyed else "127.0.0.1")
        derived = {"listen_host": host}
        if not sidecar.advertised_url and sidecar.listen_port != 0:
            broker, has_tls = self.broker.id if keyed else None, bool(self.tls.certificate_file)
            derived["advertised_url"] = own_url(host, broker, sidecar.listen_port, tls=has_tls)
        object.__setattr__(self, "sidecar", sidecar.model_copy(update=derived))
        return self

    @model_validator(mode="after")
    def _refuse_contradictions(self, info: ValidationInfo) -> Self:
        if info.context != CONTRADICTIONS_ALLOWED and (found := list(contradictions(self))):
            text = "; ".join(f"[{one.section}] {one.key}: expected {one.expected}" for one in found)
            raise ValueError(text)
        return self


def own_url(host: str, broker: BrokerId | None, port: int, *, tls: bool) -> str:
    """Return the URL of a sidecar that listens on ``host``, which may be an IPv6 address.

    One that listens on all addresses is reached at the host of its broker's id; "" without one.
    """
    shown = f"[{host}]" if ":" in host else host
    if host in EVERY_ADDRESS:
        if broker is None:
            return ""
        shown = broker.rpartition(":")[0]
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def chroot_of(config: Config) -> str:
    """Return the path in ZooKeeper below which the cluster's nodes are; / is the root."""
    return config.zookeeper.chroot or f"/loadmanager/{config.cluster.name}"


def health_port(sidecar: SidecarSettings) -> int:
    """Return the port that probes are answered on, 0 for any free one."""
    if sidecar.health_port is not None:
        return sidecar.health_port
    return sidecar.listen_port + HEALTH_PORT_OFFSET if sidecar.listen_port else 0


def lease_warning(config: Config) -> str:
    """Return what to warn of if the configured lease is longer than is safe, else an empty text."""
    wanted, zookeeper = config.ownership.self_fence_fraction, config.zookeeper
    longest = longest_lease_fraction(zookeeper.session_timeout_s, zookeeper.tick_s)
    if wanted <= longest:
        return ""
    return (
        f"[ownership] self_fence_fraction = {wanted:g} is used as {max(longest, 0.0):.3f}: "
        f"servers report a session of {zookeeper.session_timeout_s:g} s up to half a tick late, or "
        f"never if they fail first ([zookeeper] tick_s = {zookeeper.tick_s:g})"
    )


def contradictions(config: Config) -> Iterator[Contradiction]:
    yield from timing_contradictions(config.report, config.leader)
    ownership = config.ownership
    if 2 * ownership.heartbeat_fraction > ownership.self_fence_fraction:
        expected = (
            f"at most half of [ownership] self_fence_fraction ({ownership.self_fence_fraction:g}): "
            "one lost renewal must not stop a broker"
        )
        because = "ownership.self_fence_fraction"
        yield Contradiction.of("ownership.heartbeat_fraction", expected, because)
    yield from _addresses(config)
    yield from _missing(config)
    yield from _security(config)
    yield from _pulsar(config.broker, config.pulsar, config.cluster)


def timing_contradictions(
    report: ReportSettings, leader: LeaderSettings
) -> Iterator[Contradiction]:
    most = f"at most [report] max_interval_s ({report.max_interval_s:g})"
    if report.min_interval_s > report.max_interval_s:
        yield Contradiction.of("report.min_interval_s", most, "report.max_interval_s")
    if report.sample_interval_s > report.max_interval_s:
        expected = f"{most}: a report needs a sample"
        yield Contradiction.of("report.sample_interval_s", expected, "report.max_interval_s")
    longest_s = report.max_interval_s * (1 + report.jitter_fraction)
    if longest_s >= leader.report_stale_s:
        expected = (
            f"so much below [leader] report_stale_s ({leader.report_stale_s:g}) that with jitter "
            f"({longest_s:g}) an idle broker's report is renewed before it counts as stale"
        )
        because = ("leader.report_stale_s", "report.jitter_fraction")
        yield Contradiction.of("report.max_interval_s", expected, *because)
    if leader.tick_interval_s > leader.round_interval_s:
        expected = (
            f"at most [leader] round_interval_s ({leader.round_interval_s:g}): "
            "a round decides on averages"
        )
        yield Contradiction.of("leader.tick_interval_s", expected, "leader.round_interval_s")


def _addresses(config: Config) -> Iterator[Contradiction]:
    sidecar, host = config.sidecar, config.host
    keyed = config.uses_cluster_key
    if sidecar.listen_host in EVERY_ADDRESS and not keyed and not sidecar.advertised_url:
        expected = (
            f"http://host:port that others can reach, because [sidecar] listen_host "
            f"({sidecar.listen_host}) names no single address"
        )
        yield Contradiction.of("sidecar.advertised_url", expected, "sidecar.listen_host")
    port = health_port(sidecar)
    if port > HIGHEST_PORT or (port and port == sidecar.listen_port):
        expected = (
            f"a port up to {HIGHEST_PORT} beside [sidecar] listen_port ({sidecar.listen_port}), "
            f"not {port}"
        )
        yield Contradiction.of("sidecar.health_port", expected, "sidecar.listen_port")
    if host.scope == "process" and host.cores is None:
        expected = "the number of cores the broker may use, because [host] scope is process"
        yield Contradiction.of("host.cores", expected, "host.scope")


_NEEDED: Final = (
    ("zookeeper", "digest_user", "digest_password"),
    ("zookeeper", "digest_password", "digest_user"),
    ("zookeeper", "tls_certificate_file", "tls_key_file"),
    # A private key or a client certificate alone would be ignored without a message.
    ("zookeeper", "tls_certificate_file", "tls_ca_file"),
    ("zookeeper", "tls_key_file", "tls_certificate_file"),
    ("tls", "key_file", "certificate_file"),
    ("tls", "certificate_file", "key_file"),
    ("tls", "client_authorities_file", "certificate_file"),
)
"""Section, a key of it, and another key that must be set if that one is."""


def _missing(config: Config) -> Iterator[Contradiction]:
    for name, cause, key in _NEEDED:
        section = getattr(config, name)
        if getattr(section, cause) and not getattr(section, key):
            what = "a file" if name == "tls" else "a value"
            expected = f"{what}, because [{name}] {cause} is set"
            yield Contradiction.of(f"{name}.{key}", expected, f"{name}.{cause}")
    if config.history.is_remote and not config.history.spool_dir:
        expected = "a folder on this host, because [history] dir is a URL"
        yield Contradiction.of("history.spool_dir", expected, "history.dir")
    zookeeper = config.zookeeper
    if zookeeper.sasl_mechanism == "DIGEST-MD5":
        for key in ("sasl_username", "sasl_password"):
            if not getattr(zookeeper, key):
                expected = "a value, because [zookeeper] sasl_mechanism is set"
                yield Contradiction.of(f"zookeeper.{key}", expected, "zookeeper.sasl_mechanism")
    if zookeeper.creator_only and not (zookeeper.digest_user or zookeeper.sasl_mechanism):
        expected = "a digest or SASL login with it, because without one a node has no maker to name"
        because = ("zookeeper.digest_user", "zookeeper.sasl_mechanism")
        yield Contradiction.of("zookeeper.creator_only", expected, *because)


def _security(config: Config) -> Iterator[Contradiction]:
    security, listen_host = config.security, config.sidecar.listen_host
    if security.token_secret_key_file and security.token_public_key_file:
        expected = "empty, because [security] token_secret_key_file is set: tokens have one key"
        because = "security.token_secret_key_file"
        yield Contradiction.of("security.token_public_key_file", expected, because)
    if config.uses_cluster_key or config.has_proofs or security.anonymous != "auto":
        return
    if not is_loopback(listen_host):
        expected = (
            f"admin, read, lookup or none, because [sidecar] listen_host ({listen_host}) can be "
            "reached by others and neither tokens nor client certificates say who is asking"
        )
        yield Contradiction.of("security.anonymous", expected, "sidecar.listen_host")


def _pulsar(
    broker: BrokerSettings, pulsar: PulsarSettings, cluster: ClusterSettings
) -> Iterator[Contradiction]:
    kind = "broker.kind"
    if broker.kind == "contract":
        for key in PulsarSettings.model_fields:
            if getattr(pulsar, key):
                expected = f'no value, because [broker] kind is "{broker.kind}" and not "pulsar"'
                yield Contradiction.of(f"pulsar.{key}", expected, kind)
        return
    for key in ("control_url", "control_secret_file"):
        if getattr(broker, key):
            expected = 'no value, because [broker] kind is "pulsar"; [pulsar] says how it is asked'
            yield Contradiction.of(f"broker.{key}", expected, kind)
    if pulsar.token_file and pulsar.oauth2_key_file:
        expected = "no value beside token_file"
        yield Contradiction.of("pulsar.oauth2_key_file", expected, "pulsar.token_file")
    if bool(pulsar.certificate_file) != bool(pulsar.key_file):
        key = "key_file" if pulsar.certificate_file else "certificate_file"
        expected = "a value: certificate_file and key_file belong together"
        yield Contradiction.of(f"pulsar.{key}", expected)
    if cluster.hash not in {None, "crc32"}:
        expected = '"crc32", or no value: Pulsar\'s brokers place topics by it'
        yield Contradiction.of("cluster.hash", expected, kind)
