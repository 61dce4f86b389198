"""Sections for where a sidecar runs and what it connects to."""

from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, model_validator

from loadmanager.config.forms import (
    BrokerName,
    Chroot,
    ClusterName,
    Hosts,
    HttpUrl,
    ListenHost,
    Names,
    PulsarUrl,
    Secret,
    Section,
)
from loadmanager.core.hosts import is_loopback


class BrokerSettings(Section):
    """The broker beside this sidecar."""

    def exposure(self, chosen_url: str = "") -> str:
        """Return why strangers may command the broker, "" if that is not to be expected.

        ``chosen_url`` is what the start chose where ``control_url`` is empty.
        """
        url = self.control_url or chosen_url
        if not url or self.control_secret_file or is_loopback(urlsplit(url).hostname or ""):
            return ""
        return (
            f"[broker] control_url is {url!r} and control_secret_file is empty: "
            "everyone who reaches that address can command the broker; expected a loopback "
            "address, or a secret that the broker shares"
        )

    kind: Literal["contract", "pulsar"] = "contract"
    """contract: the broker implements the broker contract, and this sidecar controls it. pulsar: a
    real Pulsar broker, which manages the ownership of its bundles; it is observed, and the leader
    moves bundles by Pulsar's admin REST (docs/pulsar.md). It must be the same for all sidecars of a
    cluster."""
    id: BrokerName = Field(examples=["localhost:8080"])
    """Name of the broker in the cluster: host and port of its web service, as clients reach it. Of
    two sidecars with the same id one works, the other waits or exits."""
    http_url: HttpUrl = ""
    """Web address advertised to clients. Empty: http://{id}."""
    http_url_tls: HttpUrl = ""
    """Web address with TLS advertised to clients. Empty: the broker has none."""
    broker_url: PulsarUrl = ""
    """Binary protocol address advertised to clients. Empty: the broker has none."""
    broker_url_tls: PulsarUrl = ""
    """Binary protocol address with TLS. Empty: the broker has none."""
    control_url: HttpUrl = ""
    """Address of the broker contract's API, preferably a loopback address. Empty: http://127.0.0.1
    with the port of id; if nothing answers there when the
    sidecar starts, http://{id}."""
    control_timeout_s: float = Field(2.0, ge=0.05, le=60)
    """Timeout of one request to the broker. A longer one delays the detection of a hanging broker;
    a shorter one mistakes a slow broker for a dead one."""
    control_secret_file: str = ""
    """File with a secret shared with the broker: it is sent with every request to control_url, as
    Authorization: Bearer, and the broker refuses clients without it. 16 characters or more.
    Empty: none is sent."""
    health_interval_s: float = Field(2, ge=0, le=300)
    """Time between two health checks of the broker. A shorter one detects an unhealthy broker
    sooner at the cost of more requests. 0: no health checks; only a broker that does not answer
    lease renewals is taken out of service."""
    health_timeout_s: float = Field(2, ge=0.05, le=60)
    """Timeout of a health check; a slower answer counts as a failure."""
    unhealthy_after: int = Field(3, ge=1, le=100)
    """Failures in a row after which the broker is unhealthy: it takes no bundle and is drained.
    Fewer react to single failures."""
    healthy_after: int = Field(3, ge=1, le=100)
    """Good answers in a row after which it is healthy again and may take bundles. More exclude a
    broker that is only intermittently healthy."""
    version: str = ""
    """Version of the broker in its load reports. Empty: the version that the broker reports."""

    @model_validator(mode="after")
    def _derive_url(self) -> Self:
        if not self.http_url:
            object.__setattr__(self, "http_url", f"http://{self.id}")
        return self


# What a server listens on for every address; no client can be sent there.
EVERY_ADDRESS = ("", "0.0.0.0", "::")  # noqa: S104 - compared with, not listened on


# Neighbouring sidecars of one host have neighbouring ports: the next one would be taken.
HEALTH_PORT_OFFSET = 1_000
HIGHEST_PORT = 65_535


class SidecarSettings(Section):
    """Where this sidecar answers lookups, admin calls and metrics."""

    listen_host: ListenHost = ""
    """Address to listen on. Empty: all addresses, IPv4 and IPv6; but 127.0.0.1 where [security] or
    [tls] client_authorities_file is set. With those, 0.0.0.0 and :: need an advertised_url."""
    listen_port: int = Field(7750, ge=0, le=65535)
    """Port to listen on. 0: any free port, for tests."""
    health_port: int | None = Field(None, ge=0, le=65535, examples=[8750])
    """Port on which a separate thread answers probes (/health, /healthz, /readyz), on all
    addresses, without TLS and without tokens. Each sidecar of a host needs its own. Unset:
    listen_port + 1000, so that sidecars with neighbouring ports do not collide. 0, or unset with
    listen_port 0: any free port."""
    advertised_url: HttpUrl = ""
    """Where the other sidecars and redirected clients reach this one. Empty: http or https, as
    [tls] says, with listen_host and listen_port; where it listens on all addresses, with the host
    of [broker] id."""
    local_names: Names = Field((), examples=[["sidecar.internal"]])
    """Host names, in addition to localhost and loopback addresses, under which requests from this
    host have all rights. Use only names that others cannot point at this host: a web page could use
    them."""


class ClusterSettings(Section):
    """What all sidecars of one cluster must agree on."""

    name: ClusterName = "standalone"
    """Name of the cluster in metrics and admin paths."""
    hash: Literal["murmur3", "crc32"] | None = Field(None, examples=["crc32"])
    """Hash function that maps topic names to bundles. It is recorded in ZooKeeper at the
    first start of a cluster and cannot change later; a value that differs from the recorded one is
    an error. Unset: the recorded one, and Pulsar's, crc32, for a new cluster."""
    default_bundles: int = Field(32, ge=1, le=65536)
    """Bundles of a namespace created without a number. Fewer than twice the brokers cannot be
    balanced well; very many cost memory and ZooKeeper nodes."""


class ZookeeperSettings(Section):
    """The ZooKeeper ensemble and how to log in to it."""

    hosts: Hosts = "127.0.0.1:2181"
    """Servers of the ensemble."""
    chroot: Chroot = ""
    """Path of all znodes; sidecars create it. Empty: /loadmanager/{[cluster] name}. /: the root, as
    in version 0.1. A path that Pulsar uses is refused."""
    session_timeout_s: float = Field(10, ge=1, le=120)
    """Time without a heartbeat after which a session expires, to within a tick. A shorter one moves
    the bundles of a crashed broker sooner; pauses longer than it also expire the session."""
    tick_s: float = Field(2, ge=0, le=60)
    """The ensemble's tickTime. A server reports active sessions twice a tick, and their timeouts
    count from its last report before it failed. So a lease is never longer than the granted timeout
    minus half a tick, and counts from heartbeats that have certainly been reported. 0: unknown;
    half of the session timeout is assumed."""
    digest_user: str = ""
    """User of ZooKeeper's digest scheme. Empty: none."""
    digest_password: Secret = SecretStr("")
    """Password of digest_user."""
    sasl_mechanism: Literal["", "DIGEST-MD5", "GSSAPI"] = ""
    """SASL login; needs the extra sasl (pip install 'loadmanager[sasl]'), which the image has.
    Empty: none."""
    sasl_username: str = ""
    """User of the SASL login (DIGEST-MD5)."""
    sasl_password: Secret = SecretStr("")
    """Password of the SASL login (DIGEST-MD5)."""
    tls_ca_file: str = ""
    """CA certificates for the servers' certificates. Empty: the connection has no TLS."""
    tls_certificate_file: str = ""
    """This client's certificate. Empty: none."""
    tls_key_file: str = ""
    """Private key of tls_certificate_file."""
    tls_verify_hostname: bool = True
    """Whether the servers' certificates must name the hosts as written in hosts. false trusts all
    certificates signed by tls_ca_file, so that CA should sign only these servers."""
    creator_only: bool | None = Field(None, examples=[False])
    """Whether znodes created by sidecars can be read and changed only with the login of their
    creator; all sidecars then need the same login. With false they are open to all clients,
    including Pulsar's brokers and tools. Existing znodes keep their access lists. Unset: true with
    a login (digest or SASL), false
    without one."""


class HostSettings(Section):
    """What is measured as the broker's load."""

    scope: Literal["auto", "cgroup", "host", "process"] = "auto"
    """Which usage counts. auto: for CPU and memory each, the cgroup that limits it, else the host;
    if other brokers run in the same cgroup, such as several on one host without containers, the
    broker's process tree, with an equal share of that capacity. process: the broker's process
    tree."""
    cores: float | None = Field(None, ge=0.001, le=4096, examples=[4.0])
    """CPU cores the broker may use; required with scope process. Unset: detected."""
    memory_limit_mib: float | None = Field(None, ge=1, le=2**40, examples=[8192.0])
    """Memory the broker may use. Unset: detected."""
    nics: Names = ()
    """Network interfaces whose traffic is counted. Empty: all physical ones, or none with scope
    process."""
    nic_speed_mbit_per_s: float | None = Field(None, ge=0.001, le=1e9, examples=[10000.0])
    """Capacity of all counted interfaces together, in each direction. Unset: as reported by the
    operating system, which is often wrong in virtual machines."""
    cgroup_root: str = "/sys/fs/cgroup"
    """Mount point of the cgroup file system."""
    sys_root: str = "/sys"
    """Mount point of sysfs; a container may mount the host's elsewhere."""
    proc_root: str = "/proc"
    """Mount point of procfs."""


class HttpSettings(Section):
    """Limits of the HTTP server."""

    max_body_bytes: int = Field(1_048_576, ge=1024, le=1_073_741_824)
    """Largest request body; a larger one is answered 413."""
    max_url_bytes: int = Field(8190, ge=256, le=65536)
    """Longest request line; a longer one is answered 400 or 414."""
    keepalive_s: float = Field(75, ge=1, le=3600)
    """How long an idle connection stays open. It must be longer than a proxy in front keeps its
    own, which otherwise sends requests into connections just closed."""
    stop_s: float = Field(5, ge=0, le=300)
    """How long requests under way may take when the sidecar stops; then they are aborted. It adds
    to the time to stop."""
    backlog: int = Field(1024, ge=1, le=65535)
    """Connections the kernel holds until they are accepted; further ones are refused or retried by
    the client. The kernel's own limit (net.core.somaxconn) may be lower."""
    max_head_bytes: int = Field(65_536, ge=1024, le=1_048_576)
    """Maximum size of the request line and all headers together; a larger one is answered 431.
    Multiplied by max_connections, it bounds the memory of incomplete requests."""
    head_s: float = Field(10, ge=0.1, le=300)
    """Timeout of the request line and headers from their first byte (408), of the first byte from
    the start of the connection, and of a TLS handshake."""
    write_s: float = Field(30, ge=0.1, le=3600)
    """How long a client may leave responses unread before its connection is closed."""
    max_connections: int = Field(4096, ge=1, le=1_000_000)
    """Maximum number of open connections; further ones are answered 503 with Retry-After and
    closed. The sidecar
    raises its soft limit of open files to allow for them and 256 files of its own; if the hard
    limit is too low, it logs how many fit."""
    max_connections_per_address: int = Field(0, ge=0, le=1_000_000)
    """The same for one client address. 0: no limit, because all clients behind a proxy have one
    address."""
    max_queued_requests: int = Field(1024, ge=0, le=1_000_000)
    """Maximum number of requests waiting to be processed; further ones are answered 503 with
    Retry-After and the connection is closed. Lookups answered from the cache never wait."""


class LogSettings(Section):
    """What is logged, and how."""

    dynamic = frozenset({"level"})

    format: Literal["auto", "json", "console"] = "auto"
    """json: one object per line. auto: console on a terminal, else json."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """Minimum severity logged. debug also logs why each bundle stays."""
