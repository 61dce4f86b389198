"""TLS with certificates of an authority of our own, and roles by token or certificate."""

import base64
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.request import Request

import jwt
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from tls_files import Files
from trustme import KeyType

SUPERUSER = "operator"


@dataclass(slots=True)
class Secured:
    """``beside_plain``: brokers have plain ports too, by which the official chart names them."""

    folder: Path
    beside_plain: bool = False
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    files: Files = field(init=False)

    def __post_init__(self) -> None:
        # Java reads keys of PKCS 8 alone, and Pulsar 2.10 those of RSA alone.
        self.files = Files(self.folder, KeyType.RSA)
        key = load_pem_private_key(self.files.key.read_bytes(), None)
        self.files.key.write_bytes(
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        )

    def token(self, role: str = SUPERUSER, lasts_s: float = 3600.0) -> str:
        claims = {"sub": role, "exp": datetime.now(tz=UTC) + timedelta(seconds=lasts_s)}
        return jwt.encode(claims, self.secret, algorithm="HS256")

    def token_file(self, name: str, token: str) -> Path:
        """Put a token where a file of that name is or will be, all at once."""
        fresh, file = self.folder / f"{name}.new", self.folder / name
        fresh.write_text(f"{token}\n")
        return fresh.replace(file)

    def request(self, url: str) -> tuple[Request, ssl.SSLContext]:
        headers = {"Authorization": f"Bearer {self.token()}"}
        context = ssl.create_default_context(cafile=str(self.files.authorities))
        return Request(url, headers=headers), context  # noqa: S310 - loopback

    def settings(self, web: int, binary: int) -> Mapping[str, object]:
        certificates = self.files.authorities
        secret = base64.b64encode(self.secret).decode()
        return {
            **({} if self.beside_plain else {"webServicePort": "", "brokerServicePort": ""}),
            "webServicePortTls": web,
            "brokerServicePortTls": binary,
            "tlsCertificateFilePath": self.files.certificate,
            "tlsKeyFilePath": self.files.key,
            "tlsTrustCertsFilePath": certificates,
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "authenticateMetricsEndpoint": "true",
            "authenticationProviders": ",".join(
                f"org.apache.pulsar.broker.authentication.AuthenticationProvider{by}"
                for by in ("Token", "Tls")
            ),
            "tokenSecretKey": f"data:;base64,{secret}",
            "superUserRoles": SUPERUSER,
            "brokerClientTlsEnabled": "true",
            "brokerClientTrustCertsFilePath": certificates,
            "brokerClientAuthenticationPlugin": (
                "org.apache.pulsar.client.impl.auth.AuthenticationToken"
            ),
            "brokerClientAuthenticationParameters": f"token:{self.token()}",
        }
