import functools
import json
import socket
import ssl
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from http import HTTPStatus
from http.client import HTTPException, HTTPMessage
from pathlib import Path
from typing import IO, Any, Final
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import click

from loadmanager.cli.options import Decorator, option, options_of
from loadmanager.core.hosts import is_http_url

DEFAULT: Final = "default"


@dataclass(frozen=True, slots=True)
class Profile:
    """A named cluster with address and credentials, "" for what it does not set.

    It is a table in ``profiles.toml`` of the program's folder for settings::

        [production]
        url = "https://broker-1.example.org:7750"
        token_file = "~/.config/loadmanager/production.jwt"
        ca_file = "/etc/ssl/brokers.pem"
    """

    url: str = ""
    token_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""


def profiles_file() -> Path:
    return Path(click.get_app_dir("loadmanager")) / "profiles.toml"


def read_profile(name: str) -> Profile:
    """Return the profile; "" is the default one, if any. Raises `click.UsageError`."""
    path, known = profiles_file(), dict[str, object]()
    try:
        known = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        text = f"{path}: {why}; expected TOML with a table for each profile"
        raise click.UsageError(text) from None
    if not name and DEFAULT not in known:
        return Profile()
    table = known.get(name or DEFAULT)
    if table is None:
        have = ", ".join(sorted(known)) or "none"
        raise click.UsageError(f"{path}: no profile {name!r}; it has {have}")
    keys = [field.name for field in fields(Profile)]
    expected = f"expected texts under {', '.join(keys)}"
    if not isinstance(table, dict):
        raise click.UsageError(f"{path}: {name or DEFAULT} is no table; {expected}")
    for key, value in table.items():
        if key not in keys or not isinstance(value, str):
            raise click.UsageError(f"{path}: [{name or DEFAULT}] {key} = {value!r}; {expected}")
    return Profile(**table)


DEFAULT_URL: Final = "http://127.0.0.1:7750"
_BAD_INPUT: Final = frozenset({400, 404, 412})
# As in adapters/http/security/cluster_key.py, whose imports are too slow for a command.
_PASSED_ON_HEADER: Final = "X-Loadmanager-Token"
_HOW_TO_PROVE: Final = (
    "\nPass a token: --token-file FILE, LOADMANAGER_TOKEN_FILE or token_file of a profile. Where "
    "the\nsidecars have no [security], make one with their configuration:\n"
    "  loadmanager token --right read|admin --config FILE > FILE"
)


class RequestFailed(click.ClickException):
    """A request failed; a command that does not catch it ends with ``exit_code``.

    ``refused`` is whether a sidecar refused it; else none was reached.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, file=file, err=True)


class NotFound(RequestFailed):
    exit_code = 2


@dataclass(frozen=True, slots=True)
class SidecarClient:
    url: str
    timeout_s: float
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = None

    def ask(self, path: str, *, method: str = "GET", **query: object) -> bytes:
        """Return what ``path`` answers; redirects to the leader are followed.

        Parameters of the ``query`` that are empty or 0 are left out, and those with several values
        repeated. Raises `NotFound`: the request is wrong, or names something that does not exist;
        `RequestFailed`: the sidecar cannot be reached, refuses, or follows no leader.
        """
        asked = urlencode({name: value for name, value in query.items() if value}, doseq=True)
        headers = {"Accept": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        full = f"{self.url}{path}" + (f"?{asked}" if asked else "")
        request = Request(full, headers=headers, method=method)  # noqa: S310 - only http and https get here
        handlers = [] if self.tls is None else [HTTPSHandler(context=self.tls)]
        try:
            opener = build_opener(_ToTheLeader, *handlers)
            with opener.open(request, timeout=self.timeout_s) as reply:
                content: bytes = reply.read()
                return content
        except HTTPError as error:
            with error:
                kind = NotFound if error.code in _BAD_INPUT else RequestFailed
                how = _HOW_TO_PROVE if error.code == HTTPStatus.UNAUTHORIZED else ""
                raise kind(_reason(error) + how, refused=True) from None
        except (URLError, HTTPException, OSError) as error:
            why = error.reason if isinstance(error, URLError) else error
            slow = isinstance(why, socket.timeout)
            text = f"no answer within {self.timeout_s:g} s" if slow else why
            raise RequestFailed(f"{self.url}: {text}") from None

    def json(self, path: str, *, method: str = "GET", **query: object) -> Any:
        """Return the JSON that ``path`` answers, None for an empty answer; see `ask`."""
        content = self.ask(path, method=method, **query)
        try:
            return json.loads(content) if content.strip() else None
        except ValueError:
            raise RequestFailed(
                f"{self.url}{path}: answered {content[:120]!r}; expected JSON"
            ) from None


def _check_url(
    _context: click.Context | None, _option: click.Parameter | None, value: str | None
) -> str | None:
    if value is None:
        return None
    if not is_http_url(value):
        raise click.BadParameter(f"{value!r}; expected http://host:port of any sidecar")
    return value.rstrip("/")


_OPTIONS: Final = (
    option(
        "--url",
        envvar="LOADMANAGER_URL",
        callback=_check_url,
        help=f"Address of any sidecar of the cluster.  [default: {DEFAULT_URL}]",
    ),
    option(
        "--profile",
        envvar="LOADMANAGER_PROFILE",
        default="",
        metavar="NAME",
        help="Profile in profiles.toml: address, token, CA.  [default: the one called default]",
    ),
    option(
        "--token-file",
        envvar="LOADMANAGER_TOKEN_FILE",
        default="",
        help="File with the bearer token to send.",
    ),
    option(
        "--ca-file",
        envvar="LOADMANAGER_CA_FILE",
        default="",
        help="File with the CA certificates to trust.  [default: those of the system]",
    ),
)


def client_options(default_timeout_s: float = 30.0, *, waits: bool = True) -> Decorator:
    """Give a command the options for the sidecar's address, and a `SidecarClient` as ``client``.

    ``waits`` False leaves ``--timeout`` to the command.
    """
    timeout = option(
        "--timeout",
        "timeout_s",
        default=default_timeout_s,
        type=click.FloatRange(0.1, 3600),
        help="Seconds to wait for an answer.",
    )
    options = (*_OPTIONS, timeout) if waits else _OPTIONS

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(command)
        def with_client(
            *, url: str | None, profile: str, token_file: str, ca_file: str, **arguments: Any
        ) -> Any:
            timeout_s = arguments.pop("timeout_s") if waits else default_timeout_s
            given = Profile(url=url or "", token_file=token_file, ca_file=ca_file)
            arguments["client"] = _client(given, profile, timeout_s)
            return command(**arguments)

        return options_of(with_client, options)

    return decorate


def segment(text: str) -> str:
    return quote(text, safe=":[]")


def name_of(text: str) -> str:
    return "/".join(segment(part) for part in text.split("/"))


def bundle_path(text: str) -> str:
    """Return ``tenant/namespace/range`` as segments of a path; anything else ends the command."""
    if text.count("/") != 2 or not all(text.split("/")):  # noqa: PLR2004 - between three parts
        raise click.BadParameter(f"{text!r}; expected tenant/namespace/0xLLLLLLLL_0xUUUUUUUU")
    return name_of(text)


def _client(given: Profile, name: str, timeout_s: float) -> SidecarClient:
    # Where the address is given, only a profile that is named is used.
    known = Profile() if given.url and not name else read_profile(name)
    url = given.url or _check_url(None, None, known.url or None) or DEFAULT_URL
    token_file = given.token_file or known.token_file
    ca_file = given.ca_file or known.ca_file
    return SidecarClient(
        url=url,
        timeout_s=timeout_s,
        token=_token(token_file) if token_file else "",
        tls=_context(ca_file, known) if url.startswith("https:") else None,
    )


def _token(file: str) -> str:
    try:
        token = Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise click.UsageError(f"{file}: {why}; expected a file with a token") from None
    if not token or not token.isascii() or len(token.split()) != 1 or not token.isprintable():
        # Its content is not shown: it may be a secret.
        raise click.UsageError(f"{file}: holds no token; expected one word of ASCII letters")
    return token


def _context(ca_file: str, known: Profile) -> ssl.SSLContext:
    from loadmanager.adapters.http.security.tls import ClientTls, TlsFilesUnusable

    def path(file: str) -> Path | None:
        return Path(file).expanduser() if file else None

    try:
        files = ClientTls(path(ca_file), path(known.certificate_file), path(known.key_file))
    except TlsFilesUnusable as error:
        raise click.UsageError(str(error)) from None
    return files.context


class _ToTheLeader(HTTPRedirectHandler):
    max_redirections = 3
    max_repeats = 1

    def redirect_request(  # noqa: PLR0917 - urllib's signature
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> Request | None:
        del msg
        if code != HTTPStatus.TEMPORARY_REDIRECT or not newurl.startswith("http"):
            return None
        if req.type == "https" and not newurl.startswith("https:"):
            fp.close()
            raise URLError(f"it sends on to {newurl}, which has no TLS; a token is not sent there")
        onward = Request(newurl, headers=req.headers, method=req.get_method())  # noqa: S310 - as above
        # A sidecar of this host, where no token is needed, gives one for the leader's.
        if (token := headers.get(_PASSED_ON_HEADER)) and not req.has_header("Authorization"):
            onward.add_header("Authorization", f"Bearer {token}")
        return onward


def _reason(error: HTTPError) -> str:
    text = error.read().decode(errors="replace")
    try:
        answer = json.loads(text)
    except ValueError:
        answer = None
    reason = answer.get("reason") if isinstance(answer, dict) else None
    return reason if isinstance(reason, str) else f"{error.url}: answered {error.code} {text[:200]}"
