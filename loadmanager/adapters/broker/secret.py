"""The secret that a broker shares with its sidecar: without it, commands are refused."""

import hmac
import re
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from loadmanager.adapters.broker.contract import PREFIX
from loadmanager.core.errors import LoadManagerError

# Short ones can be guessed; a header has no room for endless ones.
_SECRET: Final = re.compile(r"[\x21-\x7e]{16,1024}")
_OPEN: Final = f"{PREFIX}/health"


class SecretUnusable(LoadManagerError):
    """The file of the shared secret cannot be read, or holds none."""


def read_secret(path: Path) -> str:
    """Raises `SecretUnusable`: the message names the file, never the content."""
    expected = "expected a file with 16 to 1,024 printable characters of ASCII without spaces"
    try:
        found = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "no ASCII"
        raise SecretUnusable(f"{path}: {why}; {expected}") from None
    if not _SECRET.fullmatch(found):
        raise SecretUnusable(f"{path}: no usable secret; {expected}")
    return found


def require_secret(secret: str) -> Middleware:
    """Return a middleware that answers 401 to requests of the contract without ``secret``.

    Health needs none: it reveals nothing and changes nothing, and probes have no secret.
    """
    wanted = f"Bearer {secret}".encode("ascii")

    @web.middleware
    async def demand(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith(f"{PREFIX}/") and request.path != _OPEN:
            shown = request.headers.getall("Authorization", [])
            found = shown[0].encode("utf-8", "surrogateescape") if len(shown) == 1 else b""
            if not hmac.compare_digest(found, wanted):
                raise web.HTTPUnauthorized(
                    reason="expected one header Authorization: Bearer, with the shared secret"
                )
        return await handler(request)

    return demand
