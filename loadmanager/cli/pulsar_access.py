import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from loadmanager.cli.options import option, options_of

if TYPE_CHECKING:
    from loadmanager.adapters.pulsar_admin import Access

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
)
_NAMES: Final = ("token_file", "ca_file", "certificate_file", "key_file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessFiles:
    """The files that options name; ``given`` are those on the command line itself."""

    token_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    given: tuple[str, ...] = ()

    def access(self) -> "Access":
        from loadmanager.adapters.http.security.tls import ClientTls, TlsFilesUnusable
        from loadmanager.adapters.pulsar_admin import Access

        if (self.certificate_file is None) != (self.key_file is None):
            why = "--certificate-file and --key-file are given together, or neither"
            raise click.UsageError(why)
        if self.ca_file is None and self.certificate_file is None:
            return Access(token_file=self.token_file)
        try:
            tls = ClientTls(self.ca_file, self.certificate_file, self.key_file).context
        except TlsFilesUnusable as error:
            raise click.UsageError(str(error)) from None
        return Access(token_file=self.token_file, tls=tls)


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def with_files(*args: Any, **options: Any) -> Any:
        source = click.get_current_context().get_parameter_source
        given = tuple(
            f"--{name.replace('_', '-')}"
            for name in _NAMES
            if source(name) is ParameterSource.COMMANDLINE
        )
        files = AccessFiles(**{name: options.pop(name) for name in _NAMES}, given=given)
        return command(*args, access_files=files, **options)

    return options_of(with_files, _OPTIONS)
