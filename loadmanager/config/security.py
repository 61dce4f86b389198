from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from loadmanager.config.errors import Contradiction
from loadmanager.config.forms import Names, Section
from loadmanager.core.hosts import is_loopback

FilePath = str


class TlsSettings(Section):
    """TLS of the sidecar's HTTP server, and of its questions to other sidecars."""

    certificate_file: FilePath = ""
    """This sidecar's certificate in PEM, with intermediate certificates. Empty: HTTP
    without TLS. Changed files are read again without a restart."""
    key_file: FilePath = ""
    """Private key of certificate_file."""
    client_authorities_file: FilePath = ""
    """CA certificates for clients' certificates. Empty: client certificates are not requested."""
    clients: Literal["optional", "required"] = "optional"
    """Whether clients must have a certificate, if client_authorities_file is set. Its common
    name is then the caller's name."""
    authorities_file: FilePath = ""
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
    token_secret_key_file: FilePath = ""
    """The secret that bearer tokens (JWT) are signed with: 32 bytes or more, the whole content of
    the file, as Pulsar's tokenSecretKey. Empty: no such tokens."""
    token_public_key_file: FilePath = ""
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
    own_token_file: FilePath = ""
    """File with a token for this sidecar's requests to others; its name needs the right read. Read
    again for each request. Empty: none."""

    @property
    def has_tokens(self) -> bool:
        return bool(self.token_secret_key_file or self.token_public_key_file)


def uses_cluster_key(security: SecuritySettings, tls: TlsSettings) -> bool:
    """Return whether tokens are signed with the cluster's own key: nothing else is configured."""
    return security == SecuritySettings() and not tls.client_authorities_file


def anonymous_right(
    security: SecuritySettings, tls: TlsSettings, listen_host: str
) -> Literal["none", "lookup", "read", "admin"]:
    if security.anonymous != "auto":
        return security.anonymous
    proofs = security.has_tokens or tls.client_authorities_file
    return "admin" if is_loopback(listen_host) and not proofs else "none"


def security_contradictions(
    security: SecuritySettings, tls: TlsSettings, listen_host: str
) -> Iterator[Contradiction]:
    if security.token_secret_key_file and security.token_public_key_file:
        expected = "empty, because [security] token_secret_key_file is set: tokens have one key"
        because = "security.token_secret_key_file"
        yield Contradiction.of("security.token_public_key_file", expected, because)
    if uses_cluster_key(security, tls):
        return
    unproven = not security.has_tokens and not tls.client_authorities_file
    if security.anonymous == "auto" and unproven and not is_loopback(listen_host):
        expected = (
            f"admin, read, lookup or none, because [sidecar] listen_host ({listen_host}) can be "
            "reached by others and neither tokens nor client certificates say who is asking"
        )
        yield Contradiction.of("security.anonymous", expected, "sidecar.listen_host")
