"""``loadmanager attach``: a Pulsar cluster as it runs today, seen from outside."""

from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import click

if TYPE_CHECKING:
    from loadmanager.adapters.pulsar_admin import Access, PulsarAdmin
    from loadmanager.attach.observation import Observation, Rules

_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)


def _check_url(_context: click.Context, _option: click.Parameter, value: str) -> str:
    try:
        parts = urlsplit(value)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
        sound = sound and not parts.path.strip("/") and not parts.query
    except ValueError:
        sound = False
    if not sound:
        raise click.BadParameter(f"{value!r}; expected http://host:port of any broker")
    return value.rstrip("/")


@click.command("attach")
@click.option(
    "--pulsar",
    "url",
    required=True,
    envvar="LOADMANAGER_PULSAR",
    callback=_check_url,
    help="The web service of any broker, such as http://broker-1:8080.",
)
@click.option(
    "--interval",
    "interval_s",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between two readings; rates are those in between.",
)
@click.option("--once", is_flag=True, help="Take one window, print it and end.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each window.")
@click.option(
    "--doctor", is_flag=True, help="Report rights, versions and settings with remedies, and end."
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="TENANT/NAMESPACE",
    help="Propose no move of these bundles; * matches any text. May be given again.",
)
@click.option(
    "--move-non-persistent",
    is_flag=True,
    help="Propose bundles with non-persistent topics as well; they lose messages in a move.",
)
@click.option(
    "--most-moves",
    default=20,
    show_default=True,
    type=click.IntRange(0, 10_000),
    help="Propose at most so many moves.",
)
@click.option(
    "--token-file",
    envvar="LOADMANAGER_PULSAR_TOKEN_FILE",
    type=_FILE,
    help="A file with a token that Pulsar accepts; read again at each question.",
)
@click.option("--ca-file", type=_FILE, help="Who signs the brokers' certificates.")
@click.option("--certificate-file", type=_FILE, help="A client certificate to show.")
@click.option("--key-file", type=_FILE, help="Its private key.")
def attach_command(
    *,
    url: str,
    interval_s: float,
    once: bool,
    as_json: bool,
    doctor: bool,
    exclude: tuple[str, ...],
    move_non_persistent: bool,
    most_moves: int,
    token_file: Path | None,
    ca_file: Path | None,
    certificate_file: Path | None,
    key_file: Path | None,
) -> None:
    """Observe a running Pulsar cluster, and print what would balance it.

    Nothing is installed in a broker, and nothing is changed: this reads the brokers'
    metrics and admin REST. It prints the load of each broker, how far the cluster is
    from the best possible, and the moves that would bring it there, with reasons.

    Exit code 1 says that the cluster cannot be read, or that --doctor found a problem.

    \b
    Example:
      loadmanager attach --pulsar http://broker-1:8080 --once
    """  # noqa: D301 - the backspace tells click not to wrap the example
    import asyncio

    from loadmanager.adapters.pulsar_admin import PulsarAdminError
    from loadmanager.attach.observation import Rules

    if (certificate_file is None) != (key_file is None):
        raise click.UsageError("--certificate-file and --key-file are given together, or neither")
    access = _access(token_file, ca_file, certificate_file, key_file)
    rules = Rules(exclude=exclude, move_non_persistent=move_non_persistent, most_moves=most_moves)
    attached = _Attached(url, rules, interval_s, as_json=as_json, doctor=doctor)
    try:
        found = asyncio.run(attached.run(access, windows=1 if once or doctor else None))
    except PulsarAdminError as error:
        click.echo(f"loadmanager attach: {error}", err=True)
        raise click.exceptions.Exit(1) from None
    except KeyboardInterrupt:
        raise click.exceptions.Exit(130) from None
    raise click.exceptions.Exit(found)


def _access(
    token_file: Path | None,
    ca_file: Path | None,
    certificate_file: Path | None,
    key_file: Path | None,
) -> "Access":
    from loadmanager.adapters.http.security.tls import TlsFilesUnusable, client_context
    from loadmanager.adapters.pulsar_admin import Access

    if ca_file is None and certificate_file is None:
        return Access(token_file=token_file)
    try:
        return Access(
            token_file=token_file, tls=client_context(ca_file, certificate_file, key_file)
        )
    except TlsFilesUnusable as error:
        raise click.UsageError(str(error)) from None


class _Attached:
    """Looks at one cluster, window after window."""

    def __init__(
        self, url: str, rules: "Rules", interval_s: float, *, as_json: bool, doctor: bool
    ) -> None:
        self._url = url
        self._rules = rules
        self._interval_s = interval_s
        self._as_json = as_json
        self._doctor = doctor

    async def run(self, access: "Access", windows: int | None) -> int:
        """Print so many windows, or until interrupted; return the exit code.

        Raises:
            PulsarAdminError: the cluster cannot be read at all.
        """
        import asyncio

        from loadmanager.adapters.pulsar_admin import PulsarAdmin
        from loadmanager.attach.discovery import Addresses, discover
        from loadmanager.attach.groups import Groups
        from loadmanager.attach.sampling import Sampler

        admin = PulsarAdmin(access)
        sampler, groups = Sampler(admin, Addresses.of(self._url)), Groups(admin)
        try:
            await sampler.sample(await discover(admin, self._url))
            while windows is None or windows > 0:
                await asyncio.sleep(self._interval_s)
                cluster = await discover(admin, self._url)
                samples, missing = await sampler.sample(cluster)
                seen = await groups.observe(self._url, cluster, samples, missing, self._rules)
                code = self._print(seen, admin)
                windows = None if windows is None else windows - 1
        finally:
            await admin.close()
        return code

    def _print(self, seen: "Observation", admin: "PulsarAdmin") -> int:
        import json

        from loadmanager.attach import screen
        from loadmanager.attach.doctor import examine
        from loadmanager.attach.observation import document
        from loadmanager.cli.tables import fitted, print_table, terminal_width

        cost, width = admin.cost, terminal_width()
        if self._doctor:
            found = examine(seen)
            for line in (screen.title(seen), *screen.findings(found)):
                click.echo(fitted(line, width))
            return int(any(one.level == "problem" for one in found))
        if self._as_json:
            told = document(seen, requests=cost.requests, answer_bytes=cost.answer_bytes)
            click.echo(json.dumps(told, allow_nan=False))
            return 0
        print_table(screen.title(seen), *screen.columns(seen))
        for line in screen.summary(seen):
            click.echo(fitted(line, width))
        click.echo(
            f"read with {cost.requests} requests and {cost.answer_bytes / 1e6:.1f} MB so far",
        )
        return 0
