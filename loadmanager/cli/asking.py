"""Asking a sidecar over HTTP, for commands: the answer, or an end with a clear message."""

import json
import socket
from http.client import HTTPException
from typing import Final, NoReturn
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

import click

_BAD_INPUT: Final = frozenset({400, 404, 412})


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


def ask(url: str, path: str, timeout_s: float, **query: str) -> bytes:
    """Return what ``GET`` of ``path`` answers; redirects to the leader are followed.

    Raises:
        click.exceptions.Exit: after a message; 2 for a question that has no answer, 1 if
            the sidecar cannot be reached or has no leader to ask now.
    """
    full = f"{url}{path}" + (f"?{urlencode(query)}" if query else "")
    request = Request(full, headers={"Accept": "application/json"})  # noqa: S310 - `check_url` lets only http and https through
    try:
        with urlopen(request, timeout=timeout_s) as reply:  # noqa: S310 - the same
            content: bytes = reply.read()
            return content
    except HTTPError as error:
        with error:
            _end(_reason(error), 2 if error.code in _BAD_INPUT else 1)
    except (URLError, HTTPException, OSError) as error:
        why = error.reason if isinstance(error, URLError) else error
        told = f"no answer within {timeout_s:g} s" if isinstance(why, socket.timeout) else why
        _end(f"{url}: {told}", 1)


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
