"""Asking a sidecar over HTTP, for commands: the answer, or an end with a clear message."""

import json
import socket
from http import HTTPStatus
from http.client import HTTPException
from typing import Final, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import click

_BAD_INPUT: Final = frozenset({400, 404, 412})
_MOST_REDIRECTS: Final = 3


def check_url(_context: click.Context, _option: click.Parameter, value: str) -> str:
    """Return a sidecar's address without a slash at the end; for an option's callback."""
    try:
        parts = urlsplit(value)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound:
        raise click.BadParameter(f"{value!r}; expected http://host:port of any sidecar")
    return value.rstrip("/")


URL_OPTION = click.option(
    "--url",
    default="http://127.0.0.1:7750",
    show_default=True,
    callback=check_url,
    envvar="LOADMANAGER_URL",
    help="Any sidecar; it knows the leader's.",
)


def ask(url: str, path: str, timeout_s: float, *, method: str = "GET", **query: str) -> bytes:
    """Return what ``path`` answers; redirects to the leader are followed.

    Raises:
        click.exceptions.Exit: after a message; 2 for a question that has no answer, 1 if
            the sidecar cannot be reached or has no leader to ask now.
    """
    full = f"{url}{path}" + (f"?{urlencode(query)}" if query else "")
    try:
        return _answer(full, method, timeout_s)
    except HTTPError as error:
        with error:
            _end(_reason(error), 2 if error.code in _BAD_INPUT else 1)
    except (URLError, HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        told = f"no answer within {timeout_s:g} s" if isinstance(why, socket.timeout) else why
        _end(f"{url}: {told}", 1)


def _answer(full: str, method: str, timeout_s: float, redirects: int = _MOST_REDIRECTS) -> bytes:
    request = Request(full, headers={"Accept": "application/json"}, method=method)  # noqa: S310 - only http and https get here
    try:
        with urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 - the same
            content: bytes = reply.read()
            return content
    except HTTPError as error:
        # urllib follows only what asks; what changes something goes on to the leader here.
        location = error.headers.get("Location", "")
        leads_on = error.code == HTTPStatus.TEMPORARY_REDIRECT and redirects > 0
        if method == "GET" or not leads_on or not location.startswith(("http://", "https://")):
            raise
        error.close()
        return _answer(location, method, timeout_s, redirects - 1)


def _reason(error: HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    reason = answer.get("reason") if isinstance(answer, dict) else None
    return reason if isinstance(reason, str) else f"{error.url}: answered {error.code} {text[:200]}"


def _end(message: str, code: int) -> NoReturn:
    click.echo(message, err=True)
    raise click.exceptions.Exit(code)
