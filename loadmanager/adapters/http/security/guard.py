import math
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web

from loadmanager.adapters.http.replies import Refused, refusal_of
from loadmanager.adapters.http.routes import Role
from loadmanager.adapters.http.security.origin import (
    READING,
    OwnNames,
    asked_hosts,
    refuse_foreign_hosts,
    refuse_foreign_page,
)
from loadmanager.adapters.http.security.tokens import Proven, TokenRefused, Tokens
from loadmanager.core.errors import LoadManagerError

# Changes are logged at any [log] level, because callers can change that level, too.
log = structlog.wrap_logger(None, wrapper_class=structlog.BoundLogger)

ANONYMOUS: Final = ""
ADMITTED_UNTIL: Final = web.RequestKey("admitted_until", float)
"""`Caller.until_s` of an admitted request, for responses that last long."""

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

    def may(self, role: Role) -> bool:
        return _RANK[self.role] >= _RANK[role]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rights:
    """The highest role of each caller by name; ``*`` is every authenticated one."""

    admins: frozenset[str] = frozenset()
    readers: frozenset[str] = frozenset()
    lookers: frozenset[str] = frozenset()
    anonymous: Role = Role.NOBODY

    def of(self, name: str) -> Role:
        granted = Role.NOBODY
        if name != ANONYMOUS:
            if name in self.admins or _EVERYONE in self.admins:
                granted = Role.ADMIN
            elif name in self.readers or _EVERYONE in self.readers:
                granted = Role.READ
            elif name in self.lookers or _EVERYONE in self.lookers:
                granted = Role.LOOKUP
        return granted if _RANK[granted] > _RANK[self.anonymous] else self.anonymous


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
        _allow(caller, role)
        return caller

    async def through(
        self,
        request: web.BaseRequest,
        role: Role,
        handle: Callable[[], Awaitable[web.StreamResponse]],
    ) -> web.StreamResponse:
        """Return the response of ``handle`` if the caller is authorized, and log changes."""
        name, status = ANONYMOUS, 500
        try:
            refuse_foreign_page(request, self._names)
            caller = self.caller(request)
            name = caller.name
            _allow(caller, role)
            request[ADMITTED_UNTIL] = caller.until_s
            reply = await self._handled(caller, role, handle)
        except LoadManagerError as error:
            status = refusal_of(error).status
            raise
        else:
            status = reply.status
            return reply
        finally:
            # POSTs of sidecars that request owners from the leader are not admin changes.
            if request.method not in READING and role is Role.ADMIN:
                _record(request, name, status)

    async def _handled(
        self, caller: Caller, role: Role, handle: Callable[[], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        try:
            return await handle()
        except Refused as refused:
            if refused.status != HTTPStatus.TEMPORARY_REDIRECT:
                raise
            more = self.passed_on(caller, role, refused.headers.get("Location", ""))
            raise Refused(refused.status, str(refused), {**refused.headers, **more}) from refused

    def passed_on(self, caller: Caller, role: Role, location: str) -> Mapping[str, str]:  # noqa: ARG002 - for guards that do
        return {}

    def caller(self, request: web.BaseRequest) -> Caller:
        """Raises `Refused`: credentials are invalid, or the request is for another host."""
        offered = request.headers.get("Authorization")
        if offered is not None and self._tokens is not None:
            return self._bearer(offered, self._tokens)
        name = _certified_name(request)
        if name:
            # The connection is authenticated; the same headers on another one prove nothing.
            return Caller(name, self._rights.of(name), until_s=0.0)
        if self._local_only:
            refuse_foreign_hosts(asked_hosts(request), self._names)
        return Caller(ANONYMOUS, self._rights.anonymous, math.inf)

    def _bearer(self, offered: str, tokens: Tokens) -> Caller:
        proven = proof_in(offered, tokens)
        until_s = time.perf_counter() + tokens.left_s(proven)
        return Caller(proven.subject, self._rights.of(proven.subject), until_s)


def proof_in(offered: str, tokens: Tokens) -> Proven:
    """Raises `Refused`: the value is not a valid bearer token."""
    scheme, _, token = offered.strip().partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise unauthorized("the Authorization header must be: Bearer and a token")
    try:
        return tokens.proven(token.strip())
    except TokenRefused as error:
        raise unauthorized(str(error), 'Bearer error="invalid_token"') from None


def _allow(caller: Caller, role: Role) -> None:
    if caller.may(role):
        return
    if caller.refusal is not None:
        raise caller.refusal()
    if caller.name == ANONYMOUS:
        raise unauthorized("credentials required")
    raise Refused(403, f"{caller.name} may not do this; it needs the role {role.value}")


def _record(request: web.BaseRequest, name: str, status: int) -> None:
    log.info(
        "admin.change.answered",
        caller=name or "anonymous",
        remote=request.remote,
        method=request.method,
        path=_logged_path(request.raw_path, status),
        status=status,
    )


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
