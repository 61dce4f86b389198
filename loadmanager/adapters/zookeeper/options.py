import ssl
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from kazoo.hosts import collect_hosts
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from loadmanager.config import Config
from loadmanager.config.model import chroot_of
from loadmanager.ports.coordination import CoordinationError

SHORTEST_CONNECT_TIMEOUT_S: Final = 0.5
"""A shorter timeout would give up a healthy but busy server."""

PAUSE_FRACTION: Final = 1 / 20
SHORTEST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperOptions:
    """The options of a session. Raises `CoordinationError`: they contradict one another.

    Attributes:
        chroot: the path below which all nodes are; created if missing. Empty: none.
        session_timeout_s: requested; the servers grant 2 to 20 of their ticks.
        digest_user: user of ZooKeeper's own ``digest`` scheme. Empty: none.
        sasl_mechanism: ``DIGEST-MD5`` or ``GSSAPI``. Empty: no SASL.
        tls_ca_file: PEM with the certificates that sign the servers'. Empty: no TLS.
        tls_certificate_file: PEM with this client's certificate. Empty: none.
        tls_key_file: PEM with its private key. Empty: it is in the certificate's file.
        creator_only: whether only this login may access the nodes that it creates. None: yes
            with a login; without one, anyone may.
        reconnect_delay_max_s: the pause between attempts to connect doubles from 0.1 s up
            to this, give or take 40 %. None: a twentieth of the session timeout, so that a
            reconnect follows soon after the end of an outage.
        close_timeout_s: time for which `close` waits for the server to confirm.
    """

    hosts: str
    chroot: str = ""
    session_timeout_s: float = 10.0
    digest_user: str = ""
    digest_password: str = field(default="", repr=False)
    sasl_mechanism: str = ""
    sasl_username: str = ""
    sasl_password: str = field(default="", repr=False)
    tls_ca_file: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    tls_verify_hostname: bool = True
    creator_only: bool | None = None
    reconnect_delay_max_s: float | None = None
    close_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if "/" in self.hosts:
            raise CoordinationError(
                f"hosts = {self.hosts!r}; expected host:port,host:port without a path (see chroot)"
            )
        try:
            collect_hosts(self.hosts)
        except ValueError as error:
            raise CoordinationError(
                f"hosts = {self.hosts!r}: {error}; expected host:port,host:port"
            ) from None
        if self.sasl_mechanism not in {"", "DIGEST-MD5", "GSSAPI"}:
            raise CoordinationError(
                f"sasl_mechanism = {self.sasl_mechanism!r}; expected DIGEST-MD5, GSSAPI or nothing"
            )
        if self.sasl_mechanism and find_spec("puresasl") is None:
            raise CoordinationError(
                f"sasl_mechanism = {self.sasl_mechanism!r} needs pure-sasl, not installed; "
                "expected: pip install 'loadmanager[sasl]'"
            )
        if self.creator_only and not self.has_login:
            raise CoordinationError("creator_only = True; expected a digest or SASL login with it")
        if self.tls_certificate_file and not self.tls_ca_file:
            raise CoordinationError("tls_certificate_file without tls_ca_file; expected both")

    @property
    def has_login(self) -> bool:
        return bool(self.digest_user or self.sasl_mechanism)

    @property
    def host_count(self) -> int:
        return self.hosts.count(",") + 1

    @property
    def connect_timeout_s(self) -> float:
        """Timeout of a connection attempt to one server.

        kazoo would wait a whole session timeout for a server whose packets are dropped, and the
        session would expire although the other servers are healthy. All servers together get a
        third of the session timeout, each an equal share.
        """
        share_s = self.session_timeout_s / 3 / self.host_count
        return max(share_s, SHORTEST_CONNECT_TIMEOUT_S)

    @property
    def longest_pause_s(self) -> float:
        """The longest pause between two attempts to connect, without jitter.

        All sidecars of a cluster retry when the servers fail, so it has a lower bound; pauses of
        more than a few seconds would not reduce the servers' load any further.
        """
        if self.reconnect_delay_max_s is not None:
            return self.reconnect_delay_max_s
        wanted_s = self.session_timeout_s * PAUSE_FRACTION
        return min(max(wanted_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)

    def access_list(self) -> Any:
        restricted = self.has_login if self.creator_only is None else self.creator_only
        return CREATOR_ALL_ACL if restricted else OPEN_ACL_UNSAFE

    def private_access_list(self) -> Any:
        """Return the access list of nodes that only this login may read, if there is a login."""
        return CREATOR_ALL_ACL if self.has_login else OPEN_ACL_UNSAFE

    def auth_data(self) -> list[tuple[str, str]]:
        if not self.digest_user:
            return []
        return [("digest", f"{self.digest_user}:{self.digest_password}")]

    def sasl_options(self) -> dict[str, str] | None:
        if not self.sasl_mechanism:
            return None
        login = {"mechanism": self.sasl_mechanism, "service": "zookeeper"}
        if self.sasl_mechanism == "DIGEST-MD5":
            login |= {"username": self.sasl_username, "password": self.sasl_password}
        return login

    def tls_context(self) -> ssl.SSLContext | None:
        """Read the certificates, and return the TLS context of a connection; None without TLS.

        Called for each connection, so that the next one uses renewed certificates. Raises
        `CoordinationError`: a file is missing or is not a certificate.
        """
        if not self.tls_ca_file:
            return None
        try:
            context = ssl.create_default_context(cafile=self.tls_ca_file)
            context.check_hostname = self.tls_verify_hostname
            if self.tls_certificate_file:
                context.load_cert_chain(self.tls_certificate_file, self.tls_key_file or None)
        except OSError as error:
            files = ", ".join(
                name
                for name in (self.tls_ca_file, self.tls_certificate_file, self.tls_key_file)
                if name
            )
            raise CoordinationError(
                f"TLS files {files}: {error}; expected readable PEM files"
            ) from error
        return context


def zookeeper_options(config: Config) -> ZooKeeperOptions:
    settings = config.zookeeper
    return ZooKeeperOptions(
        chroot=chroot_of(config),
        digest_password=settings.digest_password.get_secret_value(),
        sasl_password=settings.sasl_password.get_secret_value(),
        **settings.model_dump(exclude={"chroot", "digest_password", "sasl_password", "tick_s"}),
    )
