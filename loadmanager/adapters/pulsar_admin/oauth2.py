"""OAuth2 client credentials, named as in Pulsar's clients."""

import asyncio
import ssl
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from time import monotonic
from typing import Any, Final

import aiohttp
from pydantic_core import from_json

from loadmanager.adapters.pulsar_admin.client import (
    RequestFailed,
    RightMissing,
    answer_of,
    confidential,
    printable,
)

_WELL_KNOWN: Final = "/.well-known/openid-configuration"
_MOST_BYTES: Final = 256 * 1024
_UNSTATED_S: Final = 300.0
_MOST_LIFE_S: Final = 1e9
_EARLY_S: Final = 60.0
_EARLY_SHARE: Final = 0.1
_AGAIN_S: Final = 5.0


@dataclass(slots=True, kw_only=True)
class ClientCredentials:
    """Requests tokens by the file that Pulsar's clients call ``privateKey``, and keeps the last.

    The file is read for each new token. Without ``issuer_url`` its own is used. A token is renewed
    a minute before it expires, or a tenth of its life if that is less, and serves until then while
    the issuer does not answer. No message has a secret.
    """

    key_file: Path
    issuer_url: str = ""
    audience: str = ""
    scope: str = ""
    _token: str = field(default="", init=False, repr=False)
    _renew_s: float = field(default=float("-inf"), init=False)
    _expires_s: float = field(default=float("-inf"), init=False)
    _renewing: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    def refused(self, token: str) -> None:
        """Forget a token that a broker has refused."""
        if token == self._token:
            self._token = ""

    async def token(
        self, session: aiohttp.ClientSession, tls: ssl.SSLContext | None, timeout_s: float
    ) -> str:
        """Raises `RightMissing`: the issuer refuses; `RequestFailed`: it does not answer."""
        async with self._renewing:
            if not self._token or monotonic() >= self._renew_s:
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._renew(session, tls)
                except (TimeoutError, RequestFailed) as error:
                    if not self._token or monotonic() >= self._expires_s:
                        why = str(error) or f"no token within {timeout_s:g} s"
                        raise RequestFailed(f"OAuth2 by {self.key_file}: {why}") from None
                    self._renew_s = monotonic() + _AGAIN_S
            return self._token

    async def _renew(self, session: aiohttp.ClientSession, tls: ssl.SSLContext | None) -> None:
        key = self._key()
        issuer = (self.issuer_url or _text(key, "issuer_url")).rstrip("/")
        found = await _asked(session, tls, "GET", f"{issuer}{_WELL_KNOWN}", {})
        endpoint = _text(found, "token_endpoint")
        form = {
            "grant_type": "client_credentials",
            "client_id": _text(key, "client_id"),
            "client_secret": _text(key, "client_secret"),
            "audience": self.audience,
            "scope": self.scope,
        }
        began_s = monotonic()
        form = {name: value for name, value in form.items() if value}
        answer = await _asked(session, tls, "POST", endpoint, form)
        token = _text(answer, "access_token")
        if not token.isascii() or not token.isprintable() or not token:
            raise RequestFailed(f"{endpoint}: no access_token; expected the answer of an issuer")
        life_s = answer.get("expires_in")
        if not isinstance(life_s, int | float) or not 0 < life_s < _MOST_LIFE_S:
            life_s = _UNSTATED_S
        self._token = token
        self._expires_s = began_s + life_s
        self._renew_s = self._expires_s - min(_EARLY_S, _EARLY_SHARE * life_s)

    def _key(self) -> dict[str, Any]:
        try:
            key = from_json(self.key_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            key = None
        if not isinstance(key, dict) or not (
            _text(key, "client_id") and _text(key, "client_secret")
        ):
            raise RightMissing(
                f"{self.key_file}: expected a JSON file with client_id, client_secret and "
                "issuer_url, as Pulsar's clients read it"
            )
        return key


async def _asked(
    session: aiohttp.ClientSession,
    tls: ssl.SSLContext | None,
    method: str,
    url: str,
    form: dict[str, str],
) -> dict[str, Any]:
    if not confidential(url):
        where = printable(url) or "no URL"
        raise RightMissing(f"{where}: expected https:// for an OAuth2 issuer")
    with answer_of(url):
        async with session.request(
            method, url, data=form or None, allow_redirects=False, ssl=tls or True
        ) as answer:
            text = bytearray()
            async for chunk in answer.content.iter_any():
                text += chunk
                if len(text) > _MOST_BYTES:
                    raise RequestFailed(f"{url}: the answer has over {_MOST_BYTES:,} bytes")
    try:
        found = from_json(text, allow_inf_nan=False)
    except ValueError:
        found = None
    if answer.status in {HTTPStatus.BAD_REQUEST, HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise RightMissing(f"{url}: answered {answer.status}; expected the client to be known")
    if answer.status != HTTPStatus.OK or not isinstance(found, dict):
        raise RequestFailed(f"{url}: answered {answer.status}; expected that of an OAuth2 issuer")
    return found


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) else ""
