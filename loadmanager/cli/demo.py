"""``loadmanager demo``: a whole cluster on this machine, to look at and to break."""

import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import click

from loadmanager.cli.options import interrupted, option, print_json
from loadmanager.telemetry.visible import beneath

if TYPE_CHECKING:
    from loadmanager.demo.cluster import DemoSettings
    from loadmanager.demo.figures import Summary


@click.command("demo")
@option(
    "--brokers",
    type=click.IntRange(2, 16),
    default=4,
    help="Broker processes, each with a sidecar process.",
)
@option(
    "--bundles",
    type=click.IntRange(2, 1024),
    default=32,
    help="Number of bundles; with fewer than 8 per broker the load cannot be balanced well.",
)
@option(
    "--topics",
    type=click.IntRange(2, 20_000),
    default=200,
    help="Topics to publish to, at least one per bundle.",
)
@option(
    "--duration",
    "duration_s",
    type=click.FloatRange(min=1),
    help="Seconds of traffic. Without it the demo runs until Ctrl-C, with --kill until 40 s "
    "after the last kill.",
)
@option(
    "--seed",
    type=click.IntRange(0),
    default=1,
    help="Seed of the overloaded broker and of each topic's share.",
)
@option(
    "--kill",
    "kills",
    metavar="BROKER@SECONDS",
    multiple=True,
    help="Kill a broker and its sidecar that many seconds after the traffic begins: the one that "
    "leads (leader@20) or one by its number (2@20). May be given again.",
)
@option(
    "--rate",
    "rate_per_s",
    type=click.FloatRange(1, 2000),
    default=120.0,
    help="Messages published per second, all topics together.",
)
@option(
    "--port-base",
    type=click.IntRange(1024, 65_000),
    help="First of the 2 * brokers + 1 ports to listen on. Without it, free ones are used.",
)
@option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    help="Directory for logs, settings and records; it is kept.",
)
@option(
    "--history",
    "history_dir",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where every sidecar writes its load reports and decisions, for the pipeline.",
)
@option("--keep", is_flag=True, help="Keep the temporary data directory after a good run.")
@option("--json", "as_json", is_flag=True, help="Print the summary alone, as JSON.")
def demo_command(
    *,
    kills: tuple[str, ...],
    data_dir: Path | None,
    history_dir: Path | None,
    keep: bool,
    as_json: bool,
    **numbers: float | None,
) -> None:
    """Run a cluster on this machine, and watch it balance skewed traffic.

    Starts a ZooKeeper, brokers with a sidecar each, and a traffic generator that gives
    one broker more than half of the traffic; shows how the leader moves bundles, and
    prints a summary at the end. Prints all addresses and how to join from another
    terminal. Exits with 1 if a process ended by itself, or if ownership, lookups or
    publishing failed.

    Example: loadmanager demo --kill leader@20
    """
    try:
        from loadmanager.demo.cluster import DemoSettings, Kill

        parsed = tuple(Kill.parse(text) for text in kills)
        settings = DemoSettings(data_dir=data_dir or Path(), kills=parsed, **numbers)  # type: ignore[arg-type] # click made int and float
        if history_dir is not None:
            history_dir.mkdir(parents=True, exist_ok=True)
        settings = replace(
            settings,
            data_dir=_data_dir(data_dir),
            history_dir=history_dir.resolve() if history_dir else None,
            program=_program(),
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        summary = _run(settings, sys.stderr if as_json else sys.stdout)
    finally:
        if settings.history_dir is not None:
            from loadmanager.adapters.history.sink import finish_left

            # The demo ends the sidecars by killing them.
            finish_left(settings.history_dir)
            click.echo(f"history: {settings.history_dir}", err=True)
    if as_json:
        print_json(summary.to_json())
    else:
        from rich.console import Console

        from loadmanager.demo.display import summary_table

        Console(file=beneath(sys.stdout)).print(summary_table(summary))
    broken = summary.broken_promises
    if not broken and data_dir is None and not keep:
        shutil.rmtree(settings.data_dir, ignore_errors=True)
    else:
        click.echo(f"logs and records: {settings.data_dir}", err=True)
    if broken:
        raise click.ClickException("; ".join(broken))


def _program() -> str:
    """Return the command that starts this program from the same directory."""
    started = Path(sys.argv[0])
    found = shutil.which("loadmanager")
    if started.name != "loadmanager":
        return f"{sys.executable} -m loadmanager"
    return "loadmanager" if found and started.exists() and started.samefile(found) else str(started)


def _data_dir(chosen: Path | None) -> Path:
    """Return the directory to use: the chosen one, or a new one.

    Raises `ValueError`: it is not empty; records of two runs would be read as one.
    """
    if chosen is None:
        return Path(tempfile.mkdtemp(prefix="loadmanager-demo-"))
    chosen.mkdir(parents=True, exist_ok=True)
    if any(chosen.iterdir()):
        raise ValueError(f"--data-dir {chosen}: expected an empty or a new directory")
    return chosen.resolve()


def _run(settings: "DemoSettings", shown_on: TextIO) -> "Summary":
    import asyncio

    from loadmanager.demo.cluster import DemoFailed
    from loadmanager.demo.display import Display
    from loadmanager.demo.run import run_demo

    try:
        with (settings.data_dir / "demo.log").open("w") as log:
            return asyncio.run(run_demo(settings, Display(shown_on, log)))
    except DemoFailed as error:
        raise click.ClickException(f"{error}\nall logs: {settings.data_dir}") from None
    except asyncio.CancelledError:
        click.echo(f"interrupted; logs: {settings.data_dir}", err=True)
        raise interrupted() from None
