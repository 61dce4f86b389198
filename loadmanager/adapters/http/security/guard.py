"""Bearer tokens as Pulsar issues them: JSON Web Tokens whose subject is the caller's role.

They are signed with a shared secret or with the private key that belongs to a public one. The key
alone determines the accepted algorithms, never the token: a token cannot choose how its signature
is verified.
"""

import hashlib
import math
import time
from asyncio import BaseTransport
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any, Final

import jwt
import structlog
from aiohttp import web
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.lookups import Recent
from loadmanager.adapters.http.routes import Refused, Role, refusal_of, unavailable
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


READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_FORWARDED: Final = frozenset({"forwarded", "via", "x-real-ip"})
_MOST_CACHED: Final = 4_096
_FORWARDED_PREFIXES: Final = ("x-forwarded-", "x-envoy-")


@dataclass(frozen=True, slots=True)
class OwnNames:
    """The host names of this sidecar, in lower case; ``local`` are those of this host alone."""

    local: frozenset[str] = frozenset()
    advertised: frozenset[str] = frozenset()

    def is_local(self, host: str) -> bool:
        return (
            host in self.local
            or host == "localhost"
            or host.endswith(".localhost")
            or is_loopback_address(host)
        )

    def is_own(self, host: str) -> bool:
        """Return whether others cannot make the name resolve to this sidecar.

        An address is not resolved, so it is always safe.
        """
        return self.is_local(host) or host in self.advertised or _address(host) is not None


@lru_cache(_MOST_CACHED)
def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def is_loopback_address(text: str) -> bool:
    address = _address(text)
    return address is not None and address.is_loopback


def is_loopback_peer(transport: BaseTransport | None) -> bool:
    peer = None if transport is None else transport.get_extra_info("peername")
    return isinstance(peer, tuple) and bool(peer) and is_loopback_address(str(peer[0]))


@lru_cache(_MOST_CACHED)
def host_of(authority: str) -> str:
    """Return the host in ``host:port`` or ``[host]:port``, in lower case."""
    host = authority.strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].removesuffix(".")


def asked_hosts(request: web.BaseRequest) -> tuple[str, ...]:
    """Return the hosts that a request names as its destination; none if it names none."""
    named = tuple(map(host_of, request.headers.getall("Host", [])))
    if request.raw_path.startswith("/"):
        return named
    # An absolute target overrides the header; neither may name another host.
    return *named, host_of(request.raw_path.partition("://")[2].partition("/")[0])


def is_forwarded(request: web.BaseRequest) -> bool:
    names = map(str.lower, request.headers)
    return any(name in _FORWARDED or name.startswith(_FORWARDED_PREFIXES) for name in names)


def refuse_foreign_hosts(hosts: tuple[str, ...], names: OwnNames) -> None:
    """Refuse a request with any host that is not this sidecar's.

    A web page can send requests here under a name of its own site (DNS rebinding). Raises
    `Refused`: one of the hosts is not this sidecar's.
    """
    for host in hosts:
        if not names.is_own(host):
            raise Refused(
                403,
                f"Host {host!r} is no name of this sidecar; ask it as localhost, add the name to "
                "[sidecar] local_names, or send a token",
            )


def refuse_foreign_page(request: web.BaseRequest, names: OwnNames) -> None:
    """Refuse a change that a browser's headers show to be sent by a page of another site."""
    if request.method in READING:
        return
    if request.headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site":
        raise Refused(403, "Sec-Fetch-Site: cross-site; pages of other sites may change nothing")
    for origin in request.headers.getall("Origin", []):
        scheme, _, authority = origin.strip().lower().partition("://")
        own = scheme in {"http", "https"} and names.is_own(host_of(authority))
        if not own or authority != request.headers.get("Host", "").strip().lower():
            raise Refused(
                403, f"Origin {origin!r} is not this sidecar's; pages of others may change nothing"
            )


# Changes are logged at any [log] level, because callers can change that level, too.
log = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)

ANONYMOUS: Final = ""
ADMITTED_UNTIL: Final = web.RequestKey("admitted_until", float)
"""`Caller.until_s` of an admitted request, for responses that last long."""

_CALLER: Final = web.RequestKey("caller", str)
_EVERYONE: Final = "*"
_SETTINGS: Final = "/admin/v2/brokers/configuration/"
_RANK: Final[Mapping[Role, int]] = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller with its role; the name "" is an unauthenticated one.

    ``until_s`` is the time, on ``time.perf_counter``, until which a request with the same
    `decisive_headers` comes from a caller with the right to look up topics, on any connection that
    is also from this host, or also from another one; 0 means never. ``refusal`` returns the
    refusal of requests that the role does not include.
    """

    name: str
    role: Role
    until_s: float
    refusal: Callable[[], Refused] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The highest role of each caller by name; ``*`` is every authenticated one."""

    admins: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset()
    lookup_roles: frozenset[str] = frozenset()
    anonymous: Role = Role.NOBODY

    def of(self, name: str) -> Role:
        granted = [self.anonymous]
        for role, names in (
            (Role.ADMIN, self.admins),
            (Role.READ, self.readers),
            (Role.LOOKUP, self.lookup_roles),
        ):
            if name != ANONYMOUS and not names.isdisjoint({name, _EVERYONE}):
                granted.append(role)
        return max(granted, key=_RANK.__getitem__)


class Guard:
    """Authorizes requests, and logs every requested change.

    Without ``tokens`` bearer tokens are ignored. Changes requested by web pages of sites other than
    ``names`` are refused. With ``local_only`` all unauthenticated callers are on this host and are
    administrators: then their requests must name the host by one of ``names``.
    """

    def __init__(
        self,
        rights: Rights,
        tokens: Tokens | None = None,
        *,
        names: OwnNames | None = None,
        local_only: bool = False,
    ) -> None:
        self._rights = rights
        self._tokens = tokens
        self._names = names or OwnNames()
        self._local_only = local_only

    def admit(self, request: web.BaseRequest, role: Role) -> Caller:
        """Raises `Refused`: 401 without valid credentials, 403 if the role is not enough."""
        refuse_foreign_page(request, self._names)
        caller = self.caller(request)
        request[_CALLER] = caller.name
        if _RANK[caller.role] >= _RANK[role]:
            return caller
        if caller.refusal is not None:
            raise caller.refusal()
        if caller.name == ANONYMOUS:
            raise unauthorized("credentials required")
        raise Refused(403, f"{caller.name} may not do this; it needs the role {role.value}")

    async def through(
        self,
        request: web.BaseRequest,
        role: Role,
        handle: Callable[[], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Return the response of ``handle`` if the caller is authorized, and log changes."""
        status = 500
        try:
            caller = self.admit(request, role)
            request[ADMITTED_UNTIL] = caller.until_s
            reply = await handle()
            status = reply.status
        except LoadManagerError as error:
            refused = refusal_of(error)
            status = refused.status
            if status == HTTPStatus.TEMPORARY_REDIRECT:
                more = self.passed_on(caller, role, refused.headers.get("Location", ""))
                refused.headers = {**refused.headers, **more}
            raise
        finally:
            # POSTs of sidecars that request owners from the leader are not admin changes.
            if request.method not in READING and role is Role.ADMIN:
                log.info(
                    "admin.change.answered",
                    caller=request.get(_CALLER) or "anonymous",
                    remote=request.remote,
                    method=request.method,
                    path=_logged_path(request.raw_path, status),
                    status=status,
                )
        return reply

    def passed_on(self, caller: Caller, role: Role, location: str) -> Mapping[str, str]:  # noqa: ARG002 - for guards that do
        return {}

    def caller(self, request: web.BaseRequest) -> Caller:
        """Raises `Refused`: credentials are invalid, or the request is for another host."""
        offered = request.headers.get("Authorization")
        if offered is not None and self._tokens is not None:
            proven = proof_in(offered, self._tokens)
            until_s = time.perf_counter() + self._tokens.left_s(proven)
            return Caller(proven.subject, self._rights.of(proven.subject), until_s)
        name = _certified_name(request)
        if name:
            # The connection is authenticated; the same headers on another one prove nothing.
            return Caller(name, self._rights.of(name), until_s=0.0)
        if self._local_only:
            refuse_foreign_hosts(asked_hosts(request), self._names)
        return Caller(ANONYMOUS, self._rights.anonymous, math.inf)


def proof_in(offered: str, tokens: Tokens) -> Proven:
    """Raises `Refused`: the value is not a valid bearer token."""
    scheme, _, token = offered.strip().partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise unauthorized("the Authorization header must be: Bearer and a token")
    try:
        return tokens.proven(token.strip())
    except TokenRefused as error:
        raise unauthorized(str(error), 'Bearer error="invalid_token"') from None


def _logged_path(path: str, status: int) -> str:
    """Return a path for the log, without the value of a setting that was refused.

    Accepted values are not secret, because secrets are not dynamic settings; a refused value may
    be one.
    """
    name, slash, _ = path.removeprefix(_SETTINGS).partition("/")
    if path.startswith(_SETTINGS) and slash and status >= HTTPStatus.BAD_REQUEST:
        return f"{_SETTINGS}{name}/********"
    return path


def unauthorized(reason: str, challenge: str = "Bearer") -> Refused:
    return Refused(401, reason, {"WWW-Authenticate": challenge})


def _certified_name(request: web.BaseRequest) -> str:
    """Return the common name in the client's certificate, verified by TLS; "" without one."""
    if request.transport is None:
        return ""
    certificate: Mapping[str, Any] = request.transport.get_extra_info("peercert") or {}
    subject = certificate.get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if names else ""


ALGORITHM: Final = "HS256"
RIGHTS: Final = (Role.LOOKUP, Role.READ, Role.ADMIN)
_HOW: Final = "make one with: loadmanager token --right read|admin (docs/security.md)"
_RETRY_AFTER_S: Final = 1.0
PASSED_ON_HEADER: Final = "X-Loadmanager-Token"
PASSED_ON_S: Final = 60

_LOCAL: Final = Caller(ANONYMOUS, Role.ADMIN, math.inf)
_OTHER: Final = Caller(
    ANONYMOUS,
    Role.LOOKUP,
    math.inf,
    partial(unauthorized, f"from elsewhere this needs a token; {_HOW}"),
)
_NOT_QUITE_LOCAL: Final = Caller(
    ANONYMOUS,
    Role.LOOKUP,
    math.inf,
    partial(
        unauthorized,
        "this needs a token, or to be asked for as localhost and without a proxy's headers; "
        f"{_HOW}",
    ),
)

Key = Callable[[], bytes | None]
"""Returns the cluster's key, None while it is unknown."""


def sign(key: bytes, *, name: str, right: Role, valid_s: int) -> str:
    now_s = SystemClock().wall_ms() // 1000
    claims = {"sub": name, "right": right.value, "iat": now_s, "exp": now_s + valid_s}
    return jwt.encode(claims, key, ALGORITHM)


class ClusterKeyGuard(Guard):
    """Authorizes requests if no rights are configured.

    Requests from this host without a token may do everything, those from other hosts may look up
    topics. Requests with a token that is not valid here are treated as those from other hosts:
    Pulsar's clients send Pulsar's tokens. A valid one carries its role in the claim ``right``, and
    is signed with a key that all sidecars of the cluster read from ZooKeeper. ``may_show`` is
    whether a token may be sent to a URL.
    """

    def __init__(
        self, key: Key, names: OwnNames, may_show: Callable[[str], bool] = lambda _: False
    ) -> None:
        super().__init__(Rights(anonymous=Role.LOOKUP), names=names)
        self._key = key
        self._may_show = may_show
        self._known: bytes | None = None
        self._signed: Tokens | None = None

    def caller(self, request: web.BaseRequest) -> Caller:
        """Raises `Refused`: the request is for another host, and has no valid credentials."""
        offered = request.headers.get("Authorization")
        if offered is None:
            return self._nameless(request)
        try:
            proven = self._proven(offered)
        except Refused as refusal:
            self._nameless(request)
            reason = refusal
            return Caller(ANONYMOUS, Role.LOOKUP, math.inf, lambda: reason)
        return Caller(proven.subject, Role(proven.right), self._until_s(request))

    def passed_on(self, caller: Caller, role: Role, location: str) -> Mapping[str, str]:
        """Return a token for a caller on this host, which is remote to the other sidecar.

        It has the role that the request needs, and expires soon.
        """
        key = self._key()
        scheme, _, rest = location.partition("://")
        sidecar_url = f"{scheme}://{rest.partition('/')[0]}"
        if caller is not _LOCAL or key is None or not self._may_show(sidecar_url):
            return {}
        token = sign(key, name="a sidecar's host", right=role, valid_s=PASSED_ON_S)
        return {PASSED_ON_HEADER: token, "Cache-Control": "no-store"}

    def _nameless(self, request: web.BaseRequest) -> Caller:
        if not is_loopback_peer(request.transport):
            return _OTHER
        hosts = asked_hosts(request)
        local = bool(hosts) and all(map(self._names.is_local, hosts))
        if not local:
            refuse_foreign_hosts(hosts, self._names)
        return _LOCAL if local and not is_forwarded(request) else _NOT_QUITE_LOCAL

    def _until_s(self, request: web.BaseRequest) -> float:
        """Return `Caller.until_s` of the request without its token, 0 if it would be refused."""
        try:
            return self._nameless(request).until_s
        except Refused:
            return 0.0

    def _proven(self, offered: str) -> Proven:
        key = self._key()
        if key is None:
            raise unavailable(
                "the key that tokens are checked with is not read from ZooKeeper yet",
                _RETRY_AFTER_S,
            )
        if self._signed is None or key != self._known:
            self._known, self._signed = key, Tokens(key, (ALGORITHM,), checks_issue=False)
        try:
            proven = proof_in(offered, self._signed)
        except Refused as refused:
            raise Refused(401, f"{refused}; {_HOW}", refused.headers) from None
        if proven.right not in RIGHTS or not math.isfinite(proven.until_s):
            raise unauthorized(
                f"the token has no right of lookup, read or admin, or no end; {_HOW}",
                'Bearer error="invalid_token"',
            )
        return proven
