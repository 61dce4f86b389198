import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from loadmanager.cli.options import option, options_of
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import parse_broker

if TYPE_CHECKING:
    from loadmanager.adapters.pulsar_admin import Access
    from loadmanager.adapters.pulsar_admin.oauth2 import ClientCredentials


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
_OAUTH2: Final = ("issuer_url", "audience", "scope")
_NAMES: Final = (
    *("token_file", "ca_file", "certificate_file", "key_file", "addresses", "oauth2_key_file"),
    *(f"oauth2_{name}" for name in _OAUTH2),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFiles:
    """What options say of access; ``given`` are those on the command line itself."""

    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    oauth2_key_file: Path | None = None
    oauth2_issuer_url: str | None = None
    oauth2_audience: str | None = None
    oauth2_scope: str | None = None
    addresses: Mapping[str, str] = field(default_factory=dict)
    given: tuple[str, ...] = ()

    def access(self) -> "Access":
        from loadmanager.adapters.http.security.tls import ClientTls, TlsFilesUnusable
        from loadmanager.adapters.pulsar_admin import Access

        if (self.certificate_file is None) != (self.key_file is None):
            why = "--certificate-file and --key-file are given together, or neither"
            raise click.UsageError(why)
        tls = None
        if self.ca_file is not None or self.certificate_file is not None:
            try:
                tls = ClientTls(self.ca_file, self.certificate_file, self.key_file).context
            except TlsFilesUnusable as error:
                raise click.UsageError(str(error)) from None
        return Access(
            token_file=self.token_file,
            oauth2=self._oauth2(),
            tls=tls,
            addresses=self.addresses,
        )

    def _oauth2(self) -> "ClientCredentials | None":
        from loadmanager.adapters.pulsar_admin.oauth2 import ClientCredentials

        settings = {name: getattr(self, f"oauth2_{name}") or "" for name in _OAUTH2}
        if self.oauth2_key_file is None:
            for name in filter(settings.get, _OAUTH2):
                option = f"--oauth2-{name.replace('_', '-')}"
                raise click.UsageError(f"{option} is given with --oauth2-key-file")
            return None
        if self.token_file is not None:
            why = "--token-file and --oauth2-key-file are not given together"
            raise click.UsageError(why)
        return ClientCredentials(key_file=self.oauth2_key_file, **settings)


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_files(*args: Any, **options: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        given = tuple(
            f"--{name.replace('_', '-').removesuffix('es')}"
            for name in _NAMES
            if source(name) is ParameterSource.COMMANDLINE
        )
        files = AccessFiles(**{name: options.pop(name) for name in _NAMES}, given=given)
        return command(*args, access_files=files, **options)

    return options_of(with_files, _OPTIONS)
