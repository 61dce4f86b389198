"""Access control without configuration: by this host or others, and by tokens of the cluster key.

Such a token carries its role in the claim ``right``, and is signed with a key that all sidecars
of the cluster read from ZooKeeper.
"""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import jwt
from aiohttp import web

from loadmanager.adapters.clock import SystemClock
from loadmanager.adapters.http.replies import Refused, unavailable
from loadmanager.adapters.http.routes import Role
from loadmanager.adapters.http.security.guard import (
    ANONYMOUS,
    Caller,
    Guard,
    Rights,
    proof_in,
    unauthorized,
)
from loadmanager.adapters.http.security.origin import (
    OwnNames,
    asked_hosts,
    is_forwarded,
    is_loopback_peer,
    refuse_foreign_hosts,
)
from loadmanager.adapters.http.security.tokens import Proven, Tokens

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

    Requests from this host without a token may do everything, those from other hosts may look
    up topics. Requests with a token that is not valid here are treated as those from other hosts:
    Pulsar's clients send Pulsar's tokens. ``may_show`` is whether a token may be sent to a URL.
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
