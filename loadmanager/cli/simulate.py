"""``loadmanager simulate``: strategies compared in scenarios."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from loadmanager.cli.attach import AccessFiles, access_options
from loadmanager.cli.options import ending

if TYPE_CHECKING:
    from loadmanager.core.ids import Namespace

_MOST_FACTOR: Final = 1e6


def _parse_times(
    _context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> "dict[Namespace, float]":
    """Return the factors of namespaces' traffic that options give."""
    from loadmanager.core.errors import InvalidName
    from loadmanager.core.ids import parse_namespace

    found = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            namespace, factor = parse_namespace(name), float(number)
        except (InvalidName, ValueError):
            raise click.BadParameter(f"{text!r}; expected tenant/namespace=factor") from None
        if not 0 <= factor <= _MOST_FACTOR:
            raise click.BadParameter(f"{text!r}; expected a factor from 0 to {_MOST_FACTOR:g}")
        found[namespace] = factor
    return found


def _no_model(_context: click.Context, _option: click.Parameter, model: str | None) -> None:
    if model is not None:
        raise click.UsageError(f"--model {model}: there is one model; leave the option out")


_file = click.Path(dir_okay=False, path_type=Path)


@click.command("simulate")
@click.argument("asked", metavar="[SCENARIO]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="All shipped scenarios.")
@click.option("--list", "listed", is_flag=True, help="List the scenarios and strategies.")
@click.option(
    "--strategy",
    "strategies",
    metavar="A+B,...",
    multiple=True,
    help="Pairs shedder+placement, by our names or Pulsar's; threshold+* is every pair of a "
    "shedder. Without it, every pair that can be configured.",
)
@click.option(
    "--mode",
    type=click.Choice(["safe", "parity", "both"]),
    default="safe",
    show_default=True,
    help="safe refuses moves that worsen the balance; parity behaves as Pulsar.",
)
@click.option(
    "--set",
    "settings",
    metavar="[PART.]KEY=VALUE",
    multiple=True,
    help="One setting of every part that has it or of the part named (shedder, placement, "
    "planner, filters), of the strategies that have it. Keys are those of `loadmanager decide "
    "--set`, which docs/strategies.md lists, ours or Pulsar's, and those of [planner]: threshold, "
    "moves_per_round, placement.overloaded. May be given again.",
)
@click.option(
    "--seeds",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100_000),
    help="Number of runs of each strategy in each scenario, each with its own seed.",
)
@click.option(
    "--first-seed",
    type=click.IntRange(0, 2**31),
    help="The seed of the first run; the others follow it. Without it, the scenario's own.",
)
@click.option(
    "--jobs",
    type=click.IntRange(1, 1024),
    help="Processes to simulate in. Without it, one for each core.",
)
@click.option(
    "--trace",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Recorded topic rates, CSV or Parquet, in place of the load of the scenarios.",
)
@click.option("--model", hidden=True, expose_value=False, callback=_no_model, help="Removed.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option(
    "--table",
    is_flag=True,
    help="Print one table with a row for each scenario: the lower bound, and of each strategy the "
    "gap and the traffic moved.",
)
@click.option("--html", type=_file, help="Write a report with plots as one self-contained file.")
@click.option(
    "--history",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the history that a live cluster would have written: of several runs to one "
    "directory each, of a single run to this directory. A directory with history of another run "
    "is refused.",
)
@click.option(
    "--from",
    "source",
    metavar="URL|FILE",
    help="Instead of a scenario, a running Pulsar cluster (the URL of any broker), or the output "
    "of `loadmanager attach --once --json`: its balance now, and after changes.",
)
@click.option(
    "--add-brokers",
    "add",
    default=0,
    type=click.IntRange(0, 10_000),
    help="With --from: add this many brokers.",
)
@click.option(
    "--lose-broker",
    "lose",
    metavar="HOST:PORT",
    multiple=True,
    help="With --from: remove this broker. May be given again.",
)
@click.option(
    "--times",
    metavar="TENANT/NAMESPACE=FACTOR",
    multiple=True,
    callback=_parse_times,
    help="With --from: multiply the traffic of a namespace. May be given again.",
)
@access_options
def simulate_command(
    *,
    asked: tuple[str, ...],
    everything: bool,
    listed: bool,
    as_json: bool,
    table: bool,
    html: Path | None,
    history: Path | None,
    source: str | None,
    add: int,
    lose: tuple[str, ...],
    times: "dict[Namespace, float]",
    access_files: AccessFiles,
    **runs: Any,
) -> None:
    """Simulate scenarios with several strategies, and compare the strategies.

    SCENARIO is a shipped scenario (--list prints their names) or a TOML file. Strategies have only
    the information of a real leader, and run the same code. The same seed
    gives the same figures. docs/simulator.md describes the model and the scores.

    Exits with 1 if an expectation of a scenario did not hold, with 2 on bad input.

    \b
    Examples:
      loadmanager simulate over-placement
      loadmanager simulate --all --strategy avg+avg,threshold+* --seeds 20 --html report.html
      loadmanager simulate --all --strategy joint+joint,avg+avg --seeds 3 --first-seed 21 --table
      loadmanager simulate mine.toml --trace rates.csv --set threshold=0.05 --json
      loadmanager simulate --from http://broker-1:8080 --add-brokers 2 --times shop/orders=2
    """  # noqa: D301 - the backspace keeps click from wrapping the examples
    if source is not None:
        if asked or everything:
            raise click.UsageError("--from is given instead of scenarios")
        from loadmanager.cli.what_if import print_what_if
        from loadmanager.core.errors import LoadManagerError
        from loadmanager.pulsar.what_if import Change

        with ending(LoadManagerError, code=2):
            change = Change(add=add, lose=lose, times=times)
            print_what_if(source, access_files, change, as_json=as_json)
        return
    if add or lose or times:
        raise click.UsageError("--add-brokers, --lose-broker and --times are given with --from")
    if access_files.given:
        raise click.UsageError(f"{access_files.given[0]} is given with --from URL")
    if not listed:
        if bool(asked) == everything:
            raise click.UsageError("expected one or more scenarios, or --all; see --list")
        if table and (html is not None or history is not None):
            raise click.UsageError("--table is not given with --html or --history")
    from loadmanager.cli.simulate_runs import print_what_exists, simulate

    if listed:
        print_what_exists()
    else:
        simulate(scenarios=asked, html=html, history=history, as_json=as_json, table=table, **runs)
