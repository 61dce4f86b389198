import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from loadmanager.cli.options import option, options_of
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_broker

if TYPE_CHECKING:
    from loadmanager.adapters.pulsar_admin.client import Access


def _parse_addresses(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in texts:
        internal, _, reachable = text.partition("=")
        base = reachable.removeprefix("https://").rstrip("/")
        try:
            found[parse_broker(internal)] = reachable.rstrip("/")
            parse_broker(base)
        except InvalidName as error:
            raise click.BadParameter(f"{text}: {error}") from None
    return found


_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
_OPTIONS: Final = (
    option(
        "--token-file",
        envvar="LOADMANAGER_PULSAR_TOKEN_FILE",
        type=_FILE,
        help="A file with a token that Pulsar accepts; read again for each request.",
    ),
    option("--ca-file", type=_FILE, help="CA certificates to verify the brokers' certificates."),
    option("--certificate-file", type=_FILE, help="A client certificate to show."),
    option("--key-file", type=_FILE, help="Its private key."),
    option(
        "--oauth2-key-file",
        type=_FILE,
        help="In place of a token: the JSON file of OAuth2 client credentials that Pulsar's "
        "clients call privateKey.",
    ),
    option("--oauth2-issuer-url", help="The issuer; without it, the file's issuer_url."),
    option("--oauth2-audience", help="The audience that the issuer expects."),
    option("--oauth2-scope", help="The scope that the issuer expects."),
    option(
        "--address",
        "addresses",
        multiple=True,
        callback=_parse_addresses,
        metavar="INTERNAL=REACHABLE",
        help="Ask the broker that the cluster calls INTERNAL (host:port) at REACHABLE (the same, "
        "or https://host:port). May be given again.",
    ),
)
_NAMES: Final = (
    *("token_file", "ca_file", "certificate_file", "key_file", "addresses", "oauth2_key_file"),
    *("oauth2_issuer_url", "oauth2_audience", "oauth2_scope"),
)


@dataclass(frozen=True, slots=True)
class AccessFiles:
    """What options say of access; ``given`` are those on the command line itself."""

    settings: Mapping[str, Any]
    given: tuple[str, ...]

    def access(self) -> "Access":
        from loadmanager.adapters.http.security.tls import TlsFilesUnusable
        from loadmanager.adapters.pulsar_admin.client import OAUTH2, access_of

        of = self.settings
        if (of["certificate_file"] is None) != (of["key_file"] is None):
            why = "--certificate-file and --key-file are given together, or neither"
            raise click.UsageError(why)
        if of["oauth2_key_file"] is None:
            for name in OAUTH2:
                if of[f"oauth2_{name}"]:
                    option = f"--oauth2-{name.replace('_', '-')}"
                    raise click.UsageError(f"{option} is given with --oauth2-key-file")
        elif of["token_file"] is not None:
            why = "--token-file and --oauth2-key-file are not given together"
            raise click.UsageError(why)
        try:
            return access_of(of, of["addresses"])
        except TlsFilesUnusable as error:
            raise click.UsageError(str(error)) from None


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_files(*args: Any, **options: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        given = tuple(
            f"--{name.replace('_', '-').removesuffix('es')}"
            for name in _NAMES
            if source(name) is ParameterSource.COMMANDLINE
        )
        files = AccessFiles({name: options.pop(name) for name in _NAMES}, given)
        return command(*args, access_files=files, **options)

    return options_of(with_files, _OPTIONS)
