"""The whole configuration, and the checks that span several keys."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from loadmanager.config.balancing import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
    SplitSettings,
)
from loadmanager.config.deployment import (
    EVERY_ADDRESS,
    HEALTH_PORT_OFFSET,
    HIGHEST_PORT,
    BrokerSettings,
    ClusterSettings,
    HostSettings,
    HttpSettings,
    LogSettings,
    SidecarSettings,
    ZookeeperSettings,
)
from loadmanager.config.forms import Section
from loadmanager.config.history import HistorySettings, faults_of_history
from loadmanager.config.security import (
    SecuritySettings,
    TlsSettings,
    faults_of_security,
    uses_cluster_key,
)
from loadmanager.config.serving import (
    LookupSettings,
    OwnershipSettings,
    PulsarSettings,
    faults_of_pulsar,
)
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_broker
from loadmanager.core.lease import longest_lease_fraction


@dataclass(frozen=True, slots=True)
class Contradiction:
    """A key with a value that conflicts with that of another key.

    ``because`` are the other keys as ``(section, key)``: where one of them is at fault
    itself, the contradiction says nothing.
    """

    section: str
    key: str
    expected: str
    because: tuple[tuple[str, str], ...]


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

    @model_validator(mode="before")
    @classmethod
    def _derive_addresses(cls, values: Any) -> Any:
        """Fill in where the sidecar listens, and its URL unless the port is not known yet."""
        if not isinstance(values, dict):
            return values
        sidecar = values.get("sidecar", {})
        if not isinstance(sidecar, dict):
            return values
        fields = SidecarSettings.model_fields
        host, port = (
            sidecar.get(key, fields[key].default) for key in ("listen_host", "listen_port")
        )
        keyed = not _has_security(values)
        if host == "" and not keyed:
            host = "127.0.0.1"
        derived = {**sidecar, "listen_host": host}
        if not sidecar.get("advertised_url") and isinstance(host, str) and port != 0:
            broker = _given(values, "broker", "id") if keyed else None
            has_tls = bool(_given(values, "tls", "certificate_file"))
            derived["advertised_url"] = own_url(host, broker, port, tls=has_tls)
        return {**values, "sidecar": derived}

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> Self:
        found = tuple(contradictions(self))
        if found:
            text = "; ".join(f"[{c.section}] {c.key}: expected {c.expected}" for c in found)
            # Braces would be taken for places to fill in.
            raise PydanticCustomError(
                "contradiction", "{text}", {"text": text, "contradictions": found}
            )
        return self


def own_url(host: str, broker: object, port: object, *, tls: bool) -> str:
    """Return the URL of a sidecar that listens on ``host``, which may be an IPv6 address.

    One that listens on all addresses is reached at the host of its broker's id; "" without one.
    """
    shown = f"[{host}]" if ":" in host else host
    if host in EVERY_ADDRESS:
        try:
            shown = parse_broker(broker).rpartition(":")[0]  # type: ignore[arg-type] # whatever came in
        except (InvalidName, TypeError):
            return ""
    return f"{'https' if tls else 'http'}://{shown}:{port}"


def _has_security(values: dict[str, Any]) -> bool:
    """Return whether raw values of a configuration set rights."""
    fields = SecuritySettings.model_fields
    for key, field in fields.items():
        value = _given(values, "security", key)
        if value is not None and field.default != (
            tuple(value) if isinstance(value, list) else value
        ):
            return True
    return bool(_given(values, "tls", "client_authorities_file"))


def _given(values: dict[str, Any], section: str, key: str) -> Any:
    """Return a raw value, None if it is not given."""
    found = values.get(section)
    return found.get(key) if isinstance(found, dict) else getattr(found, key, None)


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
    """Yield every value that does not go with another one."""
    yield from timing_contradictions(config.report, config.leader)
    yield from _fencing(config.ownership)
    yield from _addresses(config)
    yield from _credentials(config)
    for fault in faults_of_security(config.security, config.tls, config.sidecar.listen_host):
        yield Contradiction(*fault)
    for fault in faults_of_history(config.history):
        yield Contradiction(*fault)
    for fault in faults_of_pulsar(config.broker, config.pulsar, config.cluster):
        yield Contradiction(*fault)


def timing_contradictions(
    report: ReportSettings, leader: LeaderSettings
) -> Iterator[Contradiction]:
    """Yield what does not go together in when load is reported, and when it is looked at."""
    if report.min_interval_s > report.max_interval_s:
        yield Contradiction(
            "report",
            "min_interval_s",
            f"at most [report] max_interval_s ({report.max_interval_s:g})",
            (("report", "max_interval_s"),),
        )
    if report.sample_interval_s > report.max_interval_s:
        yield Contradiction(
            "report",
            "sample_interval_s",
            f"at most [report] max_interval_s ({report.max_interval_s:g}): a report needs a sample",
            (("report", "max_interval_s"),),
        )
    longest_s = report.max_interval_s * (1 + report.jitter_fraction)
    if longest_s >= leader.report_stale_s:
        yield Contradiction(
            "report",
            "max_interval_s",
            f"so much below [leader] report_stale_s ({leader.report_stale_s:g}) that with jitter "
            f"({longest_s:g}) an idle broker's report is renewed before it counts as stale",
            (("leader", "report_stale_s"), ("report", "jitter_fraction")),
        )
    if leader.tick_interval_s > leader.round_interval_s:
        yield Contradiction(
            "leader",
            "tick_interval_s",
            f"at most [leader] round_interval_s ({leader.round_interval_s:g}): "
            "a round decides on averages",
            (("leader", "round_interval_s"),),
        )


def _fencing(ownership: OwnershipSettings) -> Iterator[Contradiction]:
    if 2 * ownership.heartbeat_fraction > ownership.self_fence_fraction:
        yield Contradiction(
            "ownership",
            "heartbeat_fraction",
            f"at most half of [ownership] self_fence_fraction ({ownership.self_fence_fraction:g}): "
            "one lost renewal must not stop a broker",
            (("ownership", "self_fence_fraction"),),
        )


def _addresses(config: Config) -> Iterator[Contradiction]:
    sidecar, host = config.sidecar, config.host
    keyed = uses_cluster_key(config.security, config.tls)
    if sidecar.listen_host in EVERY_ADDRESS and not keyed and not sidecar.advertised_url:
        yield Contradiction(
            "sidecar",
            "advertised_url",
            f"http://host:port that others can reach, because [sidecar] listen_host "
            f"({sidecar.listen_host}) names no single address",
            (("sidecar", "listen_host"),),
        )
    port = health_port(sidecar)
    if port > HIGHEST_PORT or (port and port == sidecar.listen_port):
        yield Contradiction(
            "sidecar",
            "health_port",
            f"a port up to {HIGHEST_PORT} beside [sidecar] listen_port ({sidecar.listen_port}), "
            f"not {port}",
            (("sidecar", "listen_port"),),
        )
    if host.scope == "process" and host.cores is None:
        yield Contradiction(
            "host",
            "cores",
            "the number of cores the broker may use, because [host] scope is process",
            (("host", "scope"),),
        )


def _credentials(config: Config) -> Iterator[Contradiction]:
    zookeeper = config.zookeeper
    sasl_password = zookeeper.sasl_mechanism == "DIGEST-MD5"
    secret = {
        "digest_password": bool(zookeeper.digest_password.get_secret_value()),
        "sasl_password": bool(zookeeper.sasl_password.get_secret_value()),
    }
    pairs = (
        ("digest_user", bool(zookeeper.digest_user), "digest_password", secret["digest_password"]),
        ("sasl_mechanism", sasl_password, "sasl_username", bool(zookeeper.sasl_username)),
        ("sasl_mechanism", sasl_password, "sasl_password", secret["sasl_password"]),
        (
            "tls_certificate_file",
            bool(zookeeper.tls_certificate_file),
            "tls_key_file",
            bool(zookeeper.tls_key_file),
        ),
        # A private key or a client certificate alone would be ignored without a word.
        (
            "tls_certificate_file",
            bool(zookeeper.tls_certificate_file),
            "tls_ca_file",
            bool(zookeeper.tls_ca_file),
        ),
    )
    for cause, wanted, key, given in pairs:
        if wanted and not given:
            yield Contradiction(
                "zookeeper",
                key,
                f"a value, because [zookeeper] {cause} is set",
                (("zookeeper", cause),),
            )
    if secret["digest_password"] and not zookeeper.digest_user:
        yield Contradiction(
            "zookeeper",
            "digest_user",
            "a value, because [zookeeper] digest_password is set",
            (("zookeeper", "digest_password"),),
        )
    if zookeeper.creator_only and not (zookeeper.digest_user or zookeeper.sasl_mechanism):
        yield Contradiction(
            "zookeeper",
            "creator_only",
            "a digest or SASL login with it, because without one a node has no maker to name",
            (("zookeeper", "digest_user"), ("zookeeper", "sasl_mechanism")),
        )
    if zookeeper.tls_key_file and not zookeeper.tls_certificate_file:
        yield Contradiction(
            "zookeeper",
            "tls_certificate_file",
            "a value, because [zookeeper] tls_key_file is set",
            (("zookeeper", "tls_key_file"),),
        )
