from collections.abc import Mapping
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
    Namespaces,
    PulsarUrl,
    Secret,
    Section,
    SettingValue,
    Shadows,
    Word,
    WordOrUnset,
)
from loadmanager.core.bounds import RATE
from loadmanager.core.history.files import MOST_ROLL_MIB
from loadmanager.core.hosts import is_loopback


class ReportSettings(Section):
    """When a sidecar measures its broker and publishes its load."""

    dynamic = True

    sample_interval_s: float = Field(5, ge=0.1, le=300)
    """How often the host and the broker are measured."""
    min_interval_s: float = Field(5, ge=0.1, le=900)
    """Least time between two reports, however much changes. A shorter one informs the leader
    sooner; each report is a write to ZooKeeper."""
    max_interval_s: float = Field(60, ge=1, le=900)
    """A report this old is renewed even if nothing changed."""
    change_fraction: float = Field(0.10, ge=0, le=10)
    """Change of message rate, throughput or number of bundles, as a share of the last report, that
    makes a new one. 0.10 is ten percent."""
    change_points: float = Field(0.10, ge=0, le=1)
    """Change of a resource's usage, as a share of its limit, that makes a new report. 0.10 is from
    40 to 50 percent."""
    jitter_fraction: float = Field(0.2, ge=0, le=0.5)
    """How far intervals vary at random, so that sidecars started together do not write together."""


class LeaderSettings(Section):
    """Intervals and waiting times of the leader."""

    dynamic = True

    round_interval_s: float = Field(60, ge=0.1, le=3600)
    """Interval between two rounds, in which the leader decides on shedding and splits."""
    tick_interval_s: float = Field(10, ge=0.05, le=3600)
    """Interval between two samples of the averages. Together with the strategy's sample counts it
    determines how far back they reach."""
    settle_s: float = Field(10, ge=0, le=3600)
    """How long the set of brokers must be unchanged before bundles are moved, so that a rolling
    restart is not answered with a wave of moves."""
    return_wait_s: float = Field(10, ge=0, le=3600)
    """How long the bundles of brokers that vanished together, or are missing just after the leader
    connected, are kept for their return before others get them. More rides out longer outages of
    ZooKeeper, less serves sooner when many brokers really died. A single broker that crashes is
    never waited for."""
    report_stale_s: float = Field(180, ge=1, le=86400)
    """A report older than this moves nothing off or onto its broker."""


class SheddingSettings(Section):
    """Which bundles are moved off overloaded brokers."""

    dynamic = True

    enabled: bool = True
    """Whether loaded bundles are moved at all. Unowned bundles are placed always."""
    strategy: Word = "joint"
    """The algorithm, by our short name or Pulsar's class name; see the strategy guide."""
    observe: bool = False
    """Decide, log and count moves without carrying any out: for trying a strategy."""
    grace_period_s: float = Field(1800, ge=0, le=604800)
    """A bundle that moved is not moved again for its load for this long. A shorter period balances
    faster, and lets bundles move repeatedly."""
    excluded_namespaces: Namespaces = ()
    """Namespaces whose bundles are never moved for their load. They still leave a broker that
    drains."""
    shadows: Shadows = ()
    """Other strategies that decide beside this one and move nothing: `loadmanager shadows` compares
    them. A name alone has its default settings."""
    settings: Mapping[str, SettingValue] = Field(default_factory=dict)
    """The strategy's own keys; see the strategy guide."""


class PlacementSettings(Section):
    """Which broker takes a bundle."""

    dynamic = True

    strategy: WordOrUnset = Field(None, examples=["joint"])
    """The algorithm, by our short name or Pulsar's class name; see the strategy guide. Unset: joint
    beside the joint strategy, which places bundles itself and takes no other, and AvgShedder beside
    any other."""
    settings: Mapping[str, SettingValue] = Field(default_factory=dict)
    """The strategy's own keys; see the strategy guide."""
    max_topics_per_broker: int = Field(50_000, ge=1, le=1_000_000_000)
    """A broker with more topics takes no bundle while another has fewer."""
    prefer_later_versions: bool = False
    """Give bundles only to brokers of the newest version, as in a rolling upgrade."""
    failure_domains: bool = False
    """Spread the namespaces of an anti-affinity group over failure domains before brokers."""
    even_bundles: bool = False
    """Give a bundle only to brokers with the fewest of its namespace, whatever their load."""


class PlannerSettings(Section):
    """Which of the strategy's moves are refused, and how many bundles may move at a time."""

    dynamic = True

    mode: Literal["safe", "parity"] = "safe"
    """safe: moves that would worsen the balance are refused, and the limits of this section hold.
    parity: the strategy's decision is carried out as Pulsar would, its accidents included
    (docs/accidents.md); of this section only the limits on placements and drains hold, and those
    that stop shedding altogether. For comparisons, best on a copy of a cluster: limits on
    throughput that wrap around in Java split bundles, and bundles are merged only on request
    (`loadmanager merge`)."""
    margin_fraction: float = Field(0.02, ge=0, le=1)
    """How far the target must stay below where the source was, or the move is refused; 0.02 is two
    points of usage. A higher margin moves less, and does not react to noise."""
    max_moves_per_round: int = Field(16, ge=0, le=100_000)
    """Most moves one round may order. 0 moves nothing. With the joint strategy, whose moves have a
    price, it binds only where it is set, be it to its default."""
    max_moves_per_hour: int = Field(480, ge=0, le=1_000_000)
    """Most moves within any hour, over all rounds: each costs its clients a reconnect. With the
    joint strategy as for max_moves_per_round."""
    max_in_flight_per_broker: int = Field(4, ge=1, le=10_000)
    """Most bundles under way from or to one broker at a time. More drain a broker faster, and load
    the others more."""
    max_bytes_per_s_per_round: float | None = Field(
        None, ge=1, le=RATE.most, examples=[104857600.0]
    )
    """Most traffic, in plus out, that one round may move. Unset: no limit."""
    max_placements_per_round: int = Field(1000, ge=1, le=1_000_000)
    """Most unowned bundles placed in one round; the rest follow in the next ones. Bundles that a
    client looks up are placed at once and not counted."""
    max_drain_moves_per_round: int = Field(50, ge=1, le=1_000_000)
    """Most bundles that `loadmanager decide` moves off draining brokers in one round. A live leader
    drains them between the rounds: see max_in_flight_per_broker."""
    max_stale_fraction: float = Field(0.34, ge=0, le=1)
    """No shedding while more than this share of the brokers have a report older than [leader]
    report_stale_s: too little of the cluster is known."""
    max_lost_fraction: float = Field(0.34, ge=0, le=1)
    """No shedding while more than this share of the brokers were lost within lost_window_s: the
    remaining ones take over their bundles first."""
    lost_window_s: float = Field(600, ge=0, le=604_800)
    """How long a lost broker counts for max_lost_fraction."""


class SplitSettings(Section):
    """When and how bundles that are too large are split."""

    dynamic = True

    enabled: bool = True
    """Whether bundles are split automatically. `loadmanager split` works in any case."""
    algorithm: Literal[
        "range_equally_divide", "topic_count_equally_divide", "flow_or_qps_equally_divide"
    ] = "range_equally_divide"
    """Where to split: in the middle of the range, in the middle of the topics, or at as many
    positions as the traffic of the parts requires."""
    max_topics: int = Field(1000, ge=1, le=2**31 - 1)
    """A bundle with more topics is split."""
    max_sessions: int = Field(1000, ge=-1, le=2**31 - 1)
    """A bundle with more producers and consumers is split. -1: they do not count."""
    max_msgs_per_s: int = Field(30_000, ge=0, le=2**31 - 1)
    """A bundle with a higher long-term message rate, in plus out, is split."""
    max_mib_per_s: int = Field(100, ge=0, le=2**31 - 1)
    """A bundle with a higher long-term throughput, in plus out, is split. With [planner] mode
    parity, 2048 and more wrap around as in Pulsar."""
    difference_percent: int = Field(10, ge=0, le=1000)
    """flow_or_qps_equally_divide splits only bundles that exceed a limit by this much."""
    max_bundles_per_namespace: int = Field(128, ge=1, le=1_000_000)
    """Bundles of a namespace with this many are not split any more."""
    max_splits_per_round: int = Field(10, ge=0, le=10_000)
    """Most bundles that one round may split."""


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


class HistorySettings(Section):
    """Load reports and decisions as files, for the pipeline. Off unless ``dir`` is set.

    The format is in docs/history-format.md.
    """

    dir: str = Field("", examples=["/var/lib/loadmanager/history"])
    """Directory for the files, which any number of sidecars may share, or a URL that fsspec
    supports,
    such as s3://bucket/prefix. Empty: no history."""
    spool_dir: str = ""
    """Directory on this host for files that are not uploaded yet; required if dir is a URL."""
    write: Literal["all", "reports", "rounds"] = "all"
    """reports: load reports of this sidecar's broker. rounds: views and decisions of this sidecar
    while it leads. all: both."""
    broker_class: str = ""
    """Class of brokers with the same hardware and image, recorded in every report: costs are
    estimated for each class separately."""
    flush_interval_s: float = Field(5, ge=0.1, le=3600)
    """Interval between writes to disk. A crash loses at most the lines of one interval. A shorter
    one compresses worse."""
    roll_mib: float = Field(64, ge=0.001, le=MOST_ROLL_MIB)
    """A file of this compressed size is finished. The pipeline reads each file as a whole and needs
    memory for it."""
    roll_interval_s: float = Field(900, ge=1, le=3600)
    """A file of this age is finished. A shorter interval makes data available to the pipeline
    sooner, in more files."""
    compression_level: int = Field(6, ge=1, le=9)
    """Level of gzip: 1 is the fastest, 9 the smallest."""
    max_age_days: float = Field(30, ge=0, le=36_500)
    """This sidecar's finished files are deleted at this age. 0: never."""
    max_size_gib: float = Field(10, ge=0, le=1_000_000)
    """The oldest of this sidecar's finished files are deleted above this total size. 0: never."""
    queue_records: int = Field(10_000, ge=10, le=10_000_000)
    """Maximum number of records that wait while the disk is slow or missing; further ones are
    counted and dropped."""
    base_every_rounds: int = Field(15, ge=1, le=10_000)
    """Number of rounds between two records of the leader's state, from which a replay can start.
    Fewer need more space."""

    seed: str = Field("", examples=["/var/lib/loadmanager/pipeline/seed.json.gz"])
    """Seed of a new leader's averages, written by `loadmanager pipeline rollup`: a file or a URL
    that fsspec supports. It is read when a term begins with too few averages from the previous
    leader. Empty: such a leader starts without averages."""
    seed_max_age_days: float = Field(7, gt=0, le=36_500)
    """A seed whose history ended longer ago is not used."""

    @property
    def is_remote(self) -> bool:
        return "://" in self.dir


class TlsSettings(Section):
    """TLS of the sidecar's HTTP server, and of its questions to other sidecars."""

    certificate_file: str = ""
    """This sidecar's certificate in PEM, with intermediate certificates. Empty: HTTP
    without TLS. Changed files are read again without a restart."""
    key_file: str = ""
    """Private key of certificate_file."""
    client_authorities_file: str = ""
    """CA certificates for clients' certificates. Empty: client certificates are not requested."""
    clients: Literal["optional", "required"] = "optional"
    """Whether clients must have a certificate, if client_authorities_file is set. Its common
    name is then the caller's name."""
    authorities_file: str = ""
    """CA certificates for other sidecars' certificates. Empty: those of the system."""
    refresh_interval_s: float = Field(60, ge=1, le=86400)
    """Interval between checks for changed files."""


class SecuritySettings(Section):
    """Which callers may look up, read and administer.

    Without any of these keys requests from this host may do everything and others look topics up;
    tokens of `loadmanager token` may do more. With one, a caller has a name by a bearer token or by
    a client certificate. Each right includes the ones before it: lookup, read, admin.
    """

    anonymous: Literal["auto", "none", "lookup", "read", "admin"] = "auto"
    """Right of unauthenticated callers, once a key of this section is set. auto: admin on a
    loopback address if neither tokens nor certificates are configured, else none. Listening on
    other addresses without tokens or certificates requires another value than auto."""
    token_secret_key_file: str = ""
    """The secret that bearer tokens (JWT) are signed with: 32 bytes or more, the whole content of
    the file, as Pulsar's tokenSecretKey. Empty: no such tokens."""
    token_public_key_file: str = ""
    """The public key, in PEM or DER, of the private one that bearer tokens are signed with, as
    Pulsar's tokenPublicKey. Empty: no such tokens."""
    token_claim: str = Field("sub", min_length=1)
    """The claim of a token that has its bearer's name."""
    token_audience: str = ""
    """Required audience of tokens. Empty: the audience is not checked."""
    admins: Names = ()
    """Names of callers with the right admin. "*" is every authenticated caller."""
    readers: Names = ()
    """Names of callers with the right read. "*" is every authenticated caller."""
    lookers: Names = ()
    """Names of callers with the right lookup. "*" is every authenticated caller."""
    own_token_file: str = ""
    """File with a token for this sidecar's requests to others; its name needs the right read. Read
    again for each request. Empty: none."""

    @property
    def has_tokens(self) -> bool:
        return bool(self.token_secret_key_file or self.token_public_key_file)


class OwnershipSettings(Section):
    """How a broker's right to serve ends when its sidecar is cut off."""

    dynamic = frozenset({"drain_deadline_s"})

    self_fence_fraction: float = Field(0.66, ge=0.1, le=0.9)
    """Share of the session timeout after which the broker of a sidecar without ZooKeeper stops
    serving, at most what [zookeeper] tick_s allows. The rest is the margin before another broker
    may begin: a larger share tolerates longer gaps, a smaller one slower clocks and longer
    pauses."""
    heartbeat_fraction: float = Field(0.15, ge=0.01, le=0.4)
    """Share of the session timeout between two renewals of the broker's lease. Each begins with a
    heartbeat: a transaction that changes nothing, one write for ZooKeeper. A smaller share detects
    a restarted broker sooner and tolerates slightly longer outages."""
    drain_deadline_s: float = Field(30, ge=0, le=3600)
    """How long a stopping sidecar waits while the leader moves its broker's bundles, a few at a
    time; the remaining ones are then released at once. Stop timeouts must be 30 s
    longer."""


class LookupSettings(Section):
    """How lookups are answered."""

    dynamic = frozenset({"wait_s", "max_concurrent", "retry_after_s"})

    wait_s: float = Field(5.0, ge=0, le=60)
    """How long a lookup waits for a bundle that is under way before it is answered 503."""
    max_concurrent: int = Field(50_000, ge=1, le=10_000_000)
    """Maximum number of waiting lookups; further ones are answered 503 at once."""
    retry_after_s: float = Field(1, ge=0.1, le=3600)
    """Seconds after which a client is to retry, in the Retry-After header of a 503."""


class PulsarSettings(Section):
    """How a real Pulsar broker is asked; only with [broker] kind = "pulsar"."""

    admin_url: HttpUrl = ""
    """Web service of the broker, as this sidecar reaches it; the same scheme is used for the other
    brokers. Empty: [broker] http_url."""
    token_file: str = ""
    """File with a token that Pulsar accepts, of a superuser; read at each request, so that it may
    be renewed. Empty: none is sent."""
    ca_file: str = ""
    """CA certificates for the brokers' certificates. Empty: those of the system."""
    certificate_file: str = ""
    """Client certificate. Empty: none."""
    key_file: str = ""
    """Private key of certificate_file."""
    oauth2_key_file: str = ""
    """In place of token_file: JSON file of OAuth2 client credentials, as Pulsar's clients read it.
    Empty: none."""
    oauth2_issuer_url: HttpUrl = ""
    """Issuer of tokens. Empty: issuer_url of oauth2_key_file."""
    oauth2_audience: str = ""
    """Audience that the issuer expects. Empty: none is sent."""
    oauth2_scope: str = ""
    """Scope that the issuer expects. Empty: none is sent."""
