"""How to reach ZooKeeper, how to log in, and the times that follow from the session's."""

import ssl
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any, Final

from kazoo.hosts import collect_hosts
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

from loadmanager.ports.coordination import CoordinationError

SHORTEST_CONNECT_TIMEOUT_S: Final = 0.5
"""Below this a healthy but busy server would be given up."""

PAUSE_FRACTION: Final = 1 / 20
SHORTEST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooKeeperOptions:
    """Everything a session needs.

    Args:
        hosts: ``host:port`` separated by commas, without a chroot.
        chroot: the path below which all nodes live; created when missing. Empty: none.
        session_timeout_s: asked for; the servers grant 2 to 20 of their ticks.
        digest_user: user of ZooKeeper's own ``digest`` scheme. Empty: none.
        digest_password: its password.
        sasl_mechanism: ``DIGEST-MD5`` or ``GSSAPI``. Empty: no SASL.
        sasl_username: user of DIGEST-MD5.
        sasl_password: its password.
        tls_ca_file: PEM with the certificates that sign the servers'. Empty: no TLS.
        tls_certificate_file: PEM with this client's certificate. Empty: none.
        tls_key_file: PEM with its private key. Empty: it is in the certificate's file.
        tls_verify_hostname: whether the server's certificate must name the host.
        creator_only: whether nodes made here may be touched by this login alone. None:
            so it is with a login, and without one everybody may.
        reconnect_delay_max_s: the pause between attempts to connect doubles from 0.1 s up
            to this, give or take 40 %. None: a twentieth of the session timeout, so that an
            outage costs the session little beyond its own length.
        close_timeout_s: how long `close` waits for the server to confirm.

    Raises:
        CoordinationError: the options contradict one another.
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
        """Refuse what can only be a mistake."""
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
        """Whether the servers know this client by a name."""
        return bool(self.digest_user or self.sasl_mechanism)

    @property
    def host_count(self) -> int:
        """How many servers are named."""
        return self.hosts.count(",") + 1

    @property
    def connect_timeout_s(self) -> float:
        """How long one server has to answer.

        kazoo would give a server that swallows packets the whole session timeout, and
        the session would die although the other servers are well. So that all of them
        can be tried within a third of the session, each gets its share of that third.
        """
        share_s = self.session_timeout_s / 3 / self.host_count
        return max(share_s, SHORTEST_CONNECT_TIMEOUT_S)

    @property
    def longest_pause_s(self) -> float:
        """The longest pause between two attempts to connect, but for the jitter.

        Every sidecar of a cluster begins to try when the servers break down, so it is
        bounded from below; more than a few seconds spare the servers nothing more.
        """
        if self.reconnect_delay_max_s is not None:
            return self.reconnect_delay_max_s
        wanted_s = self.session_timeout_s * PAUSE_FRACTION
        return min(max(wanted_s, SHORTEST_PAUSE_S), LONGEST_PAUSE_S)

    def access_list(self) -> Any:
        """Return the access list, in kazoo's form, that new nodes get."""
        restricted = self.has_login if self.creator_only is None else self.creator_only
        return CREATOR_ALL_ACL if restricted else OPEN_ACL_UNSAFE

    def private_access_list(self) -> Any:
        """Return the access list of nodes that this login alone may read, if there is one."""
        return CREATOR_ALL_ACL if self.has_login else OPEN_ACL_UNSAFE

    def auth_data(self) -> list[tuple[str, str]]:
        """Return the digest login in kazoo's form."""
        if not self.digest_user:
            return []
        return [("digest", f"{self.digest_user}:{self.digest_password}")]

    def sasl_options(self) -> dict[str, str] | None:
        """Return the SASL login in kazoo's form."""
        if not self.sasl_mechanism:
            return None
        login = {"mechanism": self.sasl_mechanism, "service": "zookeeper"}
        if self.sasl_mechanism == "DIGEST-MD5":
            login |= {"username": self.sasl_username, "password": self.sasl_password}
        return login

    def tls_context(self) -> ssl.SSLContext | None:
        """Read the certificates, and return what a connection needs; None without TLS.

        Called for each connection, so that renewed certificates are used at the next.

        Raises:
            CoordinationError: a file is missing or is no certificate.
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
