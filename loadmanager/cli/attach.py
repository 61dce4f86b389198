import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from loadmanager.cli.options import Decorator, SectionedCommand, option, options_of
from loadmanager.core.errors import InvalidName, LoadManagerError
from loadmanager.core.hosts import is_http_url
from loadmanager.core.ids import parse_broker
from loadmanager.core.move_limits import InvalidWindow, MoveLimits, MoveWindow, parse_window

if TYPE_CHECKING:
    from loadmanager.pulsar.client import Access


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
        from loadmanager.pulsar.client import OAUTH2, access_of

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


_FOLDER: Final = click.Path(file_okay=False, path_type=Path)
_LIMITS: Final = MoveLimits()
_ACTIONS: Final = (
    *("doctor", "balance", "restore", "pause", "resume", "clear_target"),
    *("cordon", "drain", "uncordon"),
)
_COUNT: Final = click.IntRange(1, 100_000)


def _state_folder() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "loadmanager"


def _parse_broker(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> str | None:
    try:
        return None if text is None else parse_broker(text)
    except InvalidName as error:
        raise click.BadParameter(f"{text}: {error}") from None


def _parse_windows(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[MoveWindow, ...]:
    try:
        return tuple(parse_window(text) for text in texts)
    except InvalidWindow as error:
        raise click.BadParameter(str(error)) from None


def _parse_urls(_context: click.Context, _option: click.Parameter, value: str) -> tuple[str, ...]:
    urls = tuple(one.strip().rstrip("/") for one in value.split(","))
    if not all(is_http_url(one, without_path=True) for one in urls):
        raise click.BadParameter(f"{value!r}; expected http://host:port of any broker")
    if len({one.partition(":")[0] for one in urls}) > 1:
        raise click.BadParameter(f"{value!r}; expected https:// for all of them, or for none")
    return urls


def _flag(name: str, text: str) -> Decorator:
    return option(name, is_flag=True, help=text)


def _limit(name: str, default: int, text: str) -> Decorator:
    return option(name, default=default, type=_COUNT, help=text)


class _Attach(SectionedCommand):
    sections = {  # noqa: RUF012 - never changed
        "doctor": "Actions",
        "split": "What --balance may do",
        "config": "State, history, page and metrics",
        "moves_per_minute": "Limits",
        "strategy": "How moves are chosen",
        "token_file": "How brokers are reached",
    }


@click.command("attach", cls=_Attach)
@option(
    "--pulsar",
    "urls",
    required=True,
    envvar="LOADMANAGER_PULSAR",
    callback=_parse_urls,
    metavar="URL[,URL...]",
    help="The web service of any broker, such as http://broker-1:8080, or of several, which are "
    "tried in turn.",
)
@option(
    "--interval",
    "interval_s",
    default=10.0,
    type=click.FloatRange(0.2, 3600),
    help="Seconds between two samples; rates are means over this interval.",
)
@_flag("--once", "Sample one interval, print it and exit.")
@option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
@_flag(
    "--verbose", "With --balance, also print each move when it is proposed and when it is ordered."
)
@option(
    "--as",
    "commands",
    type=click.Choice(["pulsar-admin"]),
    help="With --once, print the proposed moves and splits as commands to read, sign off and run.",
)
@_flag("--doctor", "Report rights, versions and settings with remedies, and end.")
@_flag(
    "--balance",
    "Make the moves. Pulsar's own shedding and automatic splits are off meanwhile, restored "
    "at the end.",
)
@_flag(
    "--restore",
    "Set Pulsar's own shedding and splits as they were before --balance, and end: after a "
    "crash of it.",
)
@_flag(
    "--pause",
    "Pause a running --balance until --resume, and exit. Pulsar's own shedding stays off.",
)
@_flag("--resume", "End a pause, and exit.")
@option(
    "--clear-target",
    metavar="BROKER",
    help="Let a broker that owned a bundle without serving it take part in moves again, and exit.",
)
@option(
    "--cordon",
    callback=_parse_broker,
    metavar="BROKER",
    help="Let a broker take no bundle until --uncordon, also after a restart of it, and exit.",
)
@option(
    "--drain",
    callback=_parse_broker,
    metavar="BROKER",
    help="As --cordon, and a running --balance takes all bundles off it, also while paused. Waits "
    "until it is safe to stop; exits with 1 if bundles are left, with the reason.",
)
@option(
    "--uncordon",
    callback=_parse_broker,
    metavar="BROKER",
    help="Let a broker take bundles again, and exit.",
)
@option("--reason", default="", help="Reason of --cordon or --drain, stored with it.")
@option(
    "--drain-timeout",
    "drain_timeout_s",
    default=600.0,
    type=click.FloatRange(0, 86_400),
    help="Seconds for which --drain waits. The drain goes on afterwards.",
)
@_flag(
    "--split",
    "Split bundles that are too large to balance by moves; requires Pulsar 3.0 or newer. "
    "Not reversible: Pulsar does not merge bundles.",
)
@_flag(
    "--place-new",
    "With --balance, spread the bundles of each new namespace over the brokers before their "
    "first lookup. Only with the modular load manager: the extensible one has no API for it.",
)
@_flag(
    "--take-over", "Balance although shedding was already switched off by another tool or operator."
)
@option(
    "--config",
    type=_FILE,
    help="Be one of several candidates, of which one balances: its [zookeeper] says where they are "
    "elected. What --state-dir would hold is there.",
)
@option(
    "--state-dir",
    type=_FOLDER,
    default=_state_folder,
    show_default="~/.local/state/loadmanager",
    help="Where --balance stores Pulsar's previous settings.",
)
@option(
    "--history",
    "history_dir",
    type=_FOLDER,
    metavar="DIR",
    help="Write every report, round, move and split there, for loadmanager pipeline.",
)
@option(
    "--page",
    type=click.IntRange(1, 65_535),
    help="Serve the live page to this host, at this port of 127.0.0.1.",
)
@option(
    "--metrics-port",
    type=click.IntRange(1, 65_535),
    help="Serve metrics for Prometheus at /metrics of this port, and /health.",
)
@option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="The address of --metrics-port; an empty one is all addresses of this host.",
)
@_limit(
    "--moves-per-minute", _LIMITS.per_minute, "Begin at most this many moves within any minute."
)
@_limit("--moves-per-hour", _LIMITS.per_hour, "Begin at most this many moves within any hour.")
@_limit(
    "--moves-per-namespace",
    _LIMITS.per_namespace,
    "Begin at most this many moves of one namespace within any minute.",
)
@_limit("--moves-at-once", _LIMITS.at_once, "Allow at most this many moves in flight.")
@option(
    "--topics-at-once",
    default=_LIMITS.topics_at_once,
    type=click.IntRange(1, 10_000_000),
    help="Allow moves in flight of bundles with at most this many topics together; one bundle "
    "may have more.",
)
@option(
    "--most-bundles",
    default=128,
    type=_COUNT,
    help="Split no namespace into more bundles than this, Pulsar's own default.",
)
@option(
    "--window",
    "windows",
    multiple=True,
    callback=_parse_windows,
    metavar="TEXT",
    help="Move only at these times, by this machine's clock: 'Mon-Fri 02:00-05:00'. May "
    "be given again.",
)
@option(
    "--settle",
    "settle_s",
    default=120.0,
    type=click.FloatRange(0, 86_400),
    help="Seconds without a move after a broker joined, left or restarted.",
)
@option(
    "--exclude",
    multiple=True,
    metavar="TENANT/NAMESPACE",
    help="Move none of these bundles; * matches any text. May be given again.",
)
@_flag(
    "--move-non-persistent",
    "Move bundles with non-persistent topics as well; they lose messages in a move.",
)
@_flag(
    "--move-system",
    "Move bundles of pulsar/system and public/functions as well, such as those of transaction "
    "coordinators, which are spread by their number.",
)
@_flag(
    "--pin-system",
    "Never move bundles with __change_events or transaction snapshots, which otherwise move "
    "when nothing else does.",
)
@option(
    "--most-moves",
    default=20,
    type=click.IntRange(0, 10_000),
    help="Propose at most this many moves in a round.",
)
@option(
    "--strategy",
    metavar="NAME",
    help="What chooses the moves: joint (the default), or another shedder of docs/strategies.md.",
)
@option(
    "--placement",
    metavar="NAME",
    help="What chooses the targets, beside a --strategy of sidecars that leaves them open.",
)
@option(
    "--tolerance",
    type=click.FloatRange(1, 2),
    help="Multiple of the level up to which a broker sheds nothing, with strategy joint; 1.02 "
    "without it and --config.",
)
@option(
    "--cores",
    type=click.FloatRange(0, 100_000, min_open=True),
    help="CPU cores of each broker, where brokers report no or a wrong limit of CPU.",
)
@access_options
@click.pass_context
def attach_command(context: click.Context, /, **options: Any) -> None:
    """Observe a running Pulsar cluster, print the moves that would balance it, and make them.

    Nothing is installed in a broker. Without --balance nothing is changed: the command reads the
    brokers' metrics and admin REST, and prints the load of each broker, how far the cluster
    is from the best possible, and the moves that would bring it there, with reasons.
    With --balance it makes these moves, round after round, until SIGINT or SIGTERM.

    Exit code 1 means that the cluster cannot be read, that --doctor found a problem, or that
    --balance had to stop.

    \b
    Examples:
      loadmanager attach --pulsar http://broker-1:8080 --once
      loadmanager attach --pulsar http://broker-1:8080 --balance
    """  # noqa: D301 - the backspace keeps click from wrapping the examples
    import asyncio

    from loadmanager.cli.attach_output import PrintedLog, strategy_of
    from loadmanager.cli.balancing import user_name
    from loadmanager.pulsar.client import PulsarAdmin
    from loadmanager.pulsar.controller import AttachActions

    _check_options(options)
    options["by"] = user_name()
    admin = PulsarAdmin(options["access_files"].access())
    log = PrintedLog(admin.cost, options["as_json"], options["verbose"])
    attached = AttachActions(admin, options, log, lambda: strategy_of(options))
    try:
        code = asyncio.run(attached.run())
    except LoadManagerError as error:
        click.echo(f"loadmanager attach: {error}", err=True)
        code = 1
    except KeyboardInterrupt:
        code = 130
    context.exit(code)


def _check_options(options: dict[str, Any]) -> None:
    given = [one.replace("_", "-") for one in _ACTIONS if options[one]]
    acts, action = given not in ([], ["balance"]), "".join(given[:1])
    alone = not given and options["once"] and not options["as_json"]
    for wrong, why in (
        (len(given) > 1, f"--{action} and --{''.join(given[1:2])} are not given together"),
        (options["history_dir"] and acts, f"--history is not given with --{action}"),
        (options["config"] and action == "doctor", "--config is not given with --doctor"),
        (options["strategy"] and acts, f"--strategy is not given with --{action}"),
        (options["commands"] and not alone, "--as is given with --once, and without --json"),
        (options["take_over"] and action != "balance", "--take-over is given with --balance"),
        (
            options["reason"] and action not in {"cordon", "drain"},
            "--reason is given with --cordon or --drain",
        ),
    ):
        if wrong:
            raise click.UsageError(why)
