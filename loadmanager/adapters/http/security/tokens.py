"""Bearer tokens as Pulsar issues them: JSON Web Tokens whose subject is the caller's role.

They are signed with a shared secret or with the private key that belongs to a public one. The key
alone determines the accepted algorithms, never the token: a token cannot choose how its signature
is verified.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.fast_path import Recent
from loadmanager.core.errors import LoadManagerError

_LEAST_SECRET_BYTES: Final = 32
_LONGEST_TOKEN: Final = 8_192
_MAX_REMEMBERED: Final = 4_096
_DATES: Final = ("exp", "nbf", "iat")
_END_OF_9999_S: Final = 253_402_300_799
_SECRET_ALGORITHMS: Final = ("HS256", "HS384", "HS512")
_RSA_ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVE_ALGORITHMS: Final = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}


_CLOCK: Final = SystemClock()


class KeyUnusable(LoadManagerError):
    pass


class TokenRefused(LoadManagerError):
    """An invalid token: malformed, signed with another key, or expired."""


@dataclass(frozen=True, slots=True)
class Proven:
    """The caller that a token names, and its expiry (seconds since 1970, inf for none).

    ``right`` is its claim of that name, "" without one; tokens of the cluster key have it.
    """

    subject: str
    until_s: float
    right: str = ""


class Tokens:
    """Verifies tokens, each once.

    Valid tokens are remembered until they expire, and also those signed with another key, because
    Pulsar's clients send Pulsar's tokens with each lookup. ``claim`` names the caller; the token's
    ``aud`` must contain ``audience``, unless that is "". ``leeway_s`` is the largest tolerated
    difference of clocks; with ``checks_issue`` a token issued in the future is refused.
    """

    def __init__(
        self,
        key: Any,
        algorithms: tuple[str, ...],
        *,
        claim: str = "sub",
        audience: str = "",
        leeway_s: float = 5.0,
        checks_issue: bool = True,
        clock: Callable[[], float] = lambda: _CLOCK.wall_ms() / 1000,
    ) -> None:
        self._key = key
        self._algorithms = list(algorithms)
        self._claim = claim
        self._audience = audience
        self._leeway_s = leeway_s
        self._checks_issue = checks_issue
        self._clock = clock
        # By digest, so that the duration of a search reveals nothing about a token.
        self._proven: Recent[bytes, Proven] = Recent(_MAX_REMEMBERED)
        # Separate, so that forged tokens, however many, evict no valid one.
        self._foreign: Recent[bytes, str] = Recent(_MAX_REMEMBERED)

    @classmethod
    def of_secret_file(cls, path: Path, **options: Any) -> "Tokens":
        """Raises `KeyUnusable`: it cannot be read, or is shorter than 32 bytes."""
        secret = _content(path)
        if len(secret) < _LEAST_SECRET_BYTES:
            raise KeyUnusable(
                f"{path}: {len(secret)} bytes; expected a secret of {_LEAST_SECRET_BYTES} or more"
            )
        return cls(secret, _SECRET_ALGORITHMS, **options)

    @classmethod
    def of_public_key_file(cls, path: Path, **options: Any) -> "Tokens":
        """The key is in PEM or DER. Raises `KeyUnusable`: it is not RSA or elliptic curve."""
        content = _content(path)
        load = load_pem_public_key if b"-----BEGIN" in content else load_der_public_key
        try:
            key = load(content)
        except (ValueError, UnsupportedAlgorithm):
            raise KeyUnusable(f"{path}: expected a public key in PEM or DER") from None
        if isinstance(key, RSAPublicKey):
            return cls(key, _RSA_ALGORITHMS, **options)
        if isinstance(key, EllipticCurvePublicKey) and key.curve.name in _CURVE_ALGORITHMS:
            return cls(key, (_CURVE_ALGORITHMS[key.curve.name],), **options)
        raise KeyUnusable(f"{path}: expected an RSA key, or one of P-256, P-384 or P-521")

    def proven(self, token: str) -> Proven:
        """Raises `TokenRefused`: the message says why, and never contains the token."""
        if len(token) > _LONGEST_TOKEN:
            raise TokenRefused(f"the token is longer than {_LONGEST_TOKEN} characters")
        if not token.isascii():
            raise TokenRefused("the token is refused: it is malformed")
        digest = hashlib.sha256(token.encode()).digest()
        known = self._proven.get(digest)
        if known is None or known.until_s <= self._clock():
            refusal = self._foreign.get(digest)
            if refusal is not None:
                raise TokenRefused(refusal)
            known = self._check(token, digest)
            self._proven.put(digest, known)
        return known

    def left_s(self, proven: Proven) -> float:
        return proven.until_s - self._clock()

    def _check(self, token: str, digest: bytes) -> Proven:
        try:
            claims = jwt.decode(
                token,
                self._key,
                algorithms=self._algorithms,
                audience=self._audience or None,
                leeway=self._leeway_s,
                options={
                    "verify_aud": bool(self._audience),
                    "verify_iat": self._checks_issue,
                    "verify_sub": False,
                },
            )
        except jwt.InvalidTokenError as error:
            refusal = f"the token is refused: {_why(error)}"
            if isinstance(error, jwt.InvalidSignatureError | jwt.InvalidAlgorithmError):
                # It is never valid with this key, at any time.
                self._foreign.put(digest, refusal)
            raise TokenRefused(refusal) from None
        except (ArithmeticError, TypeError, ValueError, RecursionError):
            # The library converts values of a token before it checks their type or depth.
            raise TokenRefused("the token is refused: it is malformed") from None
        # The library accepts dates that are texts, and numbers of any size.
        for name in _DATES:
            value = claims.get(name, 0)
            if type(value) not in {int, float} or not 0 <= value <= _END_OF_9999_S:
                raise TokenRefused(
                    f"the token is refused: {name} must be seconds since 1970, up to the year 9999"
                )
        subject = claims.get(self._claim)
        if not isinstance(subject, str) or not subject:
            raise TokenRefused(f"the token has no {self._claim!r} that names its bearer")
        expires = claims.get("exp")
        until_s = float("inf") if expires is None else float(expires) + self._leeway_s
        if until_s <= self._clock():
            raise TokenRefused("the token is refused: it has expired")
        right = claims.get("right")
        return Proven(subject, until_s, right if isinstance(right, str) else "")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KeyUnusable(f"{path}: {error.strerror}; expected a readable key file") from None


def _why(error: jwt.InvalidTokenError) -> str:
    """Return the reason as fixed text, because the library's message may quote the token."""
    match error:
        case jwt.ExpiredSignatureError():
            return "it has expired"
        case jwt.ImmatureSignatureError():
            return "it is not valid yet"
        case jwt.InvalidSignatureError() | jwt.InvalidAlgorithmError():
            return "it is not signed with the key of this cluster"
        case jwt.InvalidAudienceError():
            return "it is for another audience"
        case jwt.MissingRequiredClaimError():
            return "a claim is missing"
        case _:
            return "it is malformed"
