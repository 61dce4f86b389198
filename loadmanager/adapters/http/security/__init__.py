"""Access control over HTTP: TLS, bearer tokens, roles, and the audit log of changes."""

from loadmanager.adapters.http.security.cluster_key import ClusterKeyGuard, Key
from loadmanager.adapters.http.security.guard import Caller, Guard, Rights
from loadmanager.adapters.http.security.origin import OwnNames
from loadmanager.adapters.http.security.tls import ClientTls, TlsFiles
from loadmanager.adapters.http.security.tokens import KeyUnusable, TokenRefused, Tokens

__all__ = [
    "Caller",
    "ClientTls",
    "ClusterKeyGuard",
    "Guard",
    "Key",
    "KeyUnusable",
    "OwnNames",
    "Rights",
    "TlsFiles",
    "TokenRefused",
    "Tokens",
]
