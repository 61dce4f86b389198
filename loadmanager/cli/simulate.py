"""``loadmanager simulate``: strategies compared in scenarios."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadmanager.cli.pulsar_access import AccessFiles, access_options
from loadmanager.cli.simulation_runs import (
    Wish,
    print_all_that_is_there,
    print_json,
    simulated,
    write_page,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from loadmanager.core.ids import Namespace
    from loadmanager.simulator.comparison import Finding


def _parse_times(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> "dict[Namespace, float]":
    if not texts:
        return {}
    from loadmanager.cli.what_if import parse_times

    return parse_times(context, option, texts)


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
@click.option(
    "--model",
    type=click.IntRange(1, 2),
    help="The model of brokers and scores, whatever the scenarios say: 2 is the usual one, 1 the "
    "former one, for comparing with its figures.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
@click.option(
    "--table",
    is_flag=True,
    help="Print one table with a row for each scenario: the lower bound, and of each strategy the "
    "gap and the traffic moved, by both models unless --model names one.",
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
    strategies: tuple[str, ...],
    mode: str,
    settings: tuple[str, ...],
    seeds: int,
    first_seed: int | None,
    jobs: int | None,
    trace: Path | None,
    model: int | None,
    as_json: bool,
    table: bool,
    html: Path | None,
    history: Path | None,
    source: str | None,
    add: int,
    lose: tuple[str, ...],
    times: "dict[Namespace, float]",
    access_files: AccessFiles,
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
        _what_if(source, access_files, add, lose, times, as_json=as_json)
        return
    _check_without_from(access_files, changed=bool(add or lose or times))
    if listed:
        print_all_that_is_there()
        return
    if bool(asked) == everything:
        raise click.UsageError("expected one or more scenarios, or --all; see --list")
    if table and (html is not None or history is not None):
        raise click.UsageError("--table is not given with --html or --history")
    wish = Wish(
        scenarios=asked,
        strategies=",".join(strategies) or "*",
        mode=mode,
        settings=settings,
        seeds=seeds,
        first_seed=first_seed,
        trace=trace,
        model=model,
        jobs=jobs,
    )
    wishes = wish.by_both_models() if table else [wish]
    findings = simulated(wishes, html, history, printing=not (as_json or table))
    _print(findings, wish, as_json=as_json, table=table)
    if html is not None:
        write_page(html, findings, wish)
    _end(findings, print_failed=as_json)


def _print(findings: "Sequence[Finding]", wish: Wish, *, as_json: bool, table: bool) -> None:
    """Print what was not printed as it was found."""
    from loadmanager.cli.scenario_table import print_one_table

    if as_json:
        print_json(findings, wish)
    elif table:
        print_one_table(findings)


def _end(findings: "Sequence[Finding]", *, print_failed: bool) -> None:
    """End with 1 if an expectation did not hold."""
    failed = [one for finding in findings for one in finding.judged if not one.holds]
    for one in failed if print_failed else ():
        click.echo(str(one), err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _check_without_from(files: AccessFiles, *, changed: bool) -> None:
    if changed:
        raise click.UsageError("--add-brokers, --lose-broker and --times are given with --from")
    if files.given:
        raise click.UsageError(f"{files.given[0]} is given with --from URL")


def _what_if(
    source: str,
    files: AccessFiles,
    add: int,
    lose: tuple[str, ...],
    times: "dict[Namespace, float]",
    *,
    as_json: bool,
) -> None:
    from loadmanager.attach.what_if import Change
    from loadmanager.cli.what_if import print_what_if
    from loadmanager.core.errors import LoadManagerError

    change = Change(add=add, lose=lose, times=times)
    try:
        print_what_if(source, files, change, as_json=as_json)
    except LoadManagerError as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(2) from None
