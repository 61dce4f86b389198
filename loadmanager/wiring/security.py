from collections.abc import Callable
from pathlib import Path
from typing import Final

from loadmanager.adapters.http.assign_client import HttpAssignClient, Proof
from loadmanager.adapters.http.live.forwarding import Forwarder
from loadmanager.adapters.http.routes import Role
from loadmanager.adapters.http.security.cluster_key import ClusterKeyGuard, Key, sign
from loadmanager.adapters.http.security.guard import Guard, Rights
from loadmanager.adapters.http.security.origin import OwnNames, host_of
from loadmanager.adapters.http.security.tls import ClientTls, TlsFiles
from loadmanager.adapters.http.security.tokens import KeyUnusable, Tokens
from loadmanager.config import Config
from loadmanager.config.security import (
    SecuritySettings,
    TlsSettings,
    anonymous_right,
    uses_cluster_key,
)
from loadmanager.core.hosts import is_loopback

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
    if uses_cluster_key(security, config.tls):
        return ClusterKeyGuard(key, names, lambda url: not _withheld(config, url, is_sidecar))
    anonymous = Role(anonymous_right(security, config.tls, listen_host))
    rights = Rights(
        admins=frozenset(security.admins),
        readers=frozenset(security.readers),
        lookers=frozenset(security.lookers),
        anonymous=anonymous,
    )
    local_only = anonymous is Role.ADMIN and is_loopback(listen_host)
    return Guard(rights, _tokens(security), names=names, local_only=local_only)


def make_tls(tls: TlsSettings) -> TlsFiles | None:
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
        if not uses_cluster_key(config.security, tls):
            return Path(token_file).read_text(encoding="utf-8").strip() if token_file else ""
        known = key()
        name = f"sidecar of {config.broker.id}"
        return sign(known, name=name, right=Role.READ, valid_s=_OWN_TOKEN_S) if known else ""

    def proof(url: str) -> Proof:
        if not (own := token()):
            return Proof()
        withheld = _withheld(config, url, is_sidecar)
        return Proof(withheld=withheld) if withheld else Proof(own)

    try:
        token()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise KeyUnusable(f"{token_file}: {why}; expected a file with a token") from None
    return HttpAssignClient(tls=client, proof=proof)


def make_forwarder(
    config: Config, line: HttpAssignClient, is_sidecar: Callable[[str], bool]
) -> Forwarder:
    return Forwarder(line, lambda url: _withheld(config, url, is_sidecar))


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
