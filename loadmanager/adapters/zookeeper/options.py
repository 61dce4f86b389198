import ssl
from importlib.util import find_spec
from typing import Any, Final, Self

from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE
from pydantic import model_validator

from loadmanager.config import Config
from loadmanager.config.model import chroot_of
from loadmanager.config.sections import ZookeeperSettings
from loadmanager.ports.coordination import CoordinationError

SHORTEST_CONNECT_TIMEOUT_S: Final = 0.5
"""A shorter timeout would give up a healthy but busy server."""

PAUSE_FRACTION: Final = 1 / 20
SHORTEST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 2.0


class ZooKeeperOptions(ZookeeperSettings):
    """The options of a session; the settings' contradictions were found where they were read.

    The pause between attempts to connect doubles from 0.1 s up to ``reconnect_delay_max_s``, give
    or take 40 %. None: a twentieth of the session timeout, so that a reconnect follows soon after
    the end of an outage. ``close_timeout_s`` is how long `close` waits for the server to confirm.
    """

    reconnect_delay_max_s: float | None = None
    close_timeout_s: float = 5.0

    @model_validator(mode="after")
    def _require_sasl(self) -> Self:
        """Raises `CoordinationError`: what a SASL login takes is not installed."""
        if self.sasl_mechanism and find_spec("puresasl") is None:
            raise CoordinationError(
                f"sasl_mechanism = {self.sasl_mechanism!r} needs pure-sasl, not installed; "
                "expected: pip install 'loadmanager[sasl]'"
            )
        return self

    @property
    def has_login(self) -> bool:
        return bool(self.digest_user or self.sasl_mechanism)

    @property
    def connect_timeout_s(self) -> float:
        """Timeout of a connection attempt to one server.

        kazoo would wait a whole session timeout for a server whose packets are dropped, and the
        session would expire although the other servers are healthy. All servers together get a
        third of the session timeout, each an equal share.
        """
        share_s = self.session_timeout_s / 3 / (self.hosts.count(",") + 1)
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
        return [("digest", f"{self.digest_user}:{self.digest_password.get_secret_value()}")]

    def sasl_options(self) -> dict[str, str] | None:
        if not self.sasl_mechanism:
            return None
        login = {"mechanism": self.sasl_mechanism, "service": "zookeeper"}
        if self.sasl_mechanism == "DIGEST-MD5":
            login["username"] = self.sasl_username
            login["password"] = self.sasl_password.get_secret_value()
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
    return ZooKeeperOptions(**{**dict(config.zookeeper), "chroot": chroot_of(config)})
