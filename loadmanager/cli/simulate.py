"""``loadmanager simulate``: strategies side by side, in scenarios that are text files."""

import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadmanager.cli.pulsar_access import AccessFiles, access_options
from loadmanager.cli.stopping import interrupted

if TYPE_CHECKING:
    from loadmanager.core.ids import Namespace
    from loadmanager.simulator.comparing import Job
    from loadmanager.simulator.comparison import Comparison, Finding


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
    help="safe refuses what makes things worse; parity does as Pulsar would.",
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
    help="How many runs of each strategy in each scenario, each with a seed of its own.",
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
    "--html", type=_file, help="Write a report with plots: one file that fetches nothing."
)
@click.option(
    "--history",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write the history a live cluster would have written, to a folder for each run in this "
    "one; to this one if there is but one run. What other runs wrote there is refused.",
)
@click.option(
    "--from",
    "source",
    metavar="URL|FILE",
    help="Instead of a scenario, a Pulsar cluster as it runs (the URL of any broker), or what "
    "`loadmanager attach --once --json` printed of it: how even it is, and would be.",
)
@click.option(
    "--add-brokers",
    "add",
    default=0,
    type=click.IntRange(0, 10_000),
    help="With --from: as if so many more brokers were there.",
)
@click.option(
    "--lose-broker",
    "lose",
    metavar="HOST:PORT",
    multiple=True,
    help="With --from: as if this one were gone. May be given again.",
)
@click.option(
    "--times",
    metavar="TENANT/NAMESPACE=FACTOR",
    multiple=True,
    callback=_parse_times,
    help="With --from: as if a namespace had so many times its traffic. May be given again.",
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
    html: Path | None,
    history: Path | None,
    source: str | None,
    add: int,
    lose: tuple[str, ...],
    times: "dict[Namespace, float]",
    access_files: AccessFiles,
) -> None:
    """Simulate scenarios with several strategies, and compare the strategies.

    SCENARIO is a shipped scenario (--list prints their names) or a TOML file. Strategies see
    only what a real leader sees, and decide with the code of a real leader. The same seed
    gives the same figures. docs/simulator.md describes the model and the files, and what the
    scores mean.

    Ends with 1 if an expectation of a scenario did not hold, with 2 on bad input.

    \b
    Examples:
      loadmanager simulate over-placement
      loadmanager simulate --all --strategy avg+avg,threshold+* --seeds 20 --html report.html
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
        from loadmanager.cli.simulating import print_list

        with _bad_input():
            print_list()
        return
    if bool(asked) == everything:
        raise click.UsageError("expected one or more scenarios, or --all; --list tells their names")
    with _bad_input():
        pairs = ",".join(strategies) or "*"
        comparison = _comparison(asked, pairs, mode, settings, trace=trace, model=model)
        comparison = replace(comparison, seeds=seeds, first_seed=first_seed)
        comparison = _kept(comparison, html, history)
    from loadmanager.cli.simulating import document_of

    told = {
        "--set": ", ".join(settings), "--trace": str(trace or ""), "--model": str(model or ""),
    }  # fmt: skip
    told = {option: value for option, value in told.items() if value}
    findings = _found(comparison, jobs or len(os.sched_getaffinity(0)), printing=not as_json)
    if as_json:
        click.echo(json.dumps(document_of(findings, told), indent=2))
    if html is not None:
        _write_report(html, findings, told)
    failed = [one for finding in findings for one in finding.judged if not one.holds]
    for one in failed if as_json else ():
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


def _comparison(
    asked: tuple[str, ...],
    strategies: str,
    mode: str,
    settings: tuple[str, ...],
    *,
    trace: Path | None,
    model: int | None,
) -> "Comparison":
    """Return what is to be compared; everything that is wrong with it is told now."""
    from loadmanager.simulator.catalogue import shipped
    from loadmanager.simulator.comparison import (
        Comparison,
        check_settings,
        load_scenarios,
    )
    from loadmanager.simulator.strategies import MODES, parse_strategies

    modes = [one for one in MODES if mode in {one, "both"}]
    pairs = parse_strategies(strategies, modes, settings)
    scenarios = load_scenarios(asked or shipped(), trace, model)
    check_settings(scenarios.values(), pairs)
    judging = not settings and trace is None and model is None
    if not judging and any(scenario.expect for scenario in scenarios.values()):
        click.echo("expectations are not judged: they are of scenarios as they are", err=True)
    return Comparison(scenarios=scenarios, strategies=pairs, judging=judging)


@contextmanager
def _bad_input() -> Iterator[None]:
    """End with 2, and a line for each fault, if something that was given cannot be used."""
    from loadmanager.charts import MissingCharts
    from loadmanager.config import ConfigError
    from loadmanager.simulator.errors import ScenarioError

    try:
        yield
    except (ConfigError, ScenarioError, MissingCharts) as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(2) from None
    except OSError as error:
        if error.filename is None:  # a broken pipe is no input
            raise
        click.echo(f"{error.filename}: {error.strerror}", err=True)
        raise click.exceptions.Exit(2) from None


def _kept(comparison: "Comparison", html: Path | None, history: Path | None) -> "Comparison":
    """Return it with what is to be written; what could not be is told before hours are spent."""
    if html is not None:
        _check_report(html)
        comparison = replace(comparison, pictured=True)
    if history is not None:
        from loadmanager.cli.simulated_history import (
            SimulatedHistory,
        )

        witnessed = SimulatedHistory.of(history, comparison)
        for name, folder in witnessed.renamed():
            click.echo(f"{name}: its history goes to {folder}, for another has its name", err=True)
        history.mkdir(parents=True, exist_ok=True)
        comparison = replace(comparison, witnessed=witnessed)
    return comparison


def _check_report(html: Path) -> None:
    from loadmanager.charts import MissingCharts, check_place

    if find_spec("plotly") is None:
        raise MissingCharts
    check_place(html)


def _found(comparison: "Comparison", processes: int, *, printing: bool) -> list["Finding"]:
    """Return what was found; print each scenario's tables as soon as they are known."""
    from loadmanager.cli.simulating import print_notes, print_scenario
    from loadmanager.core.errors import LoadManagerError

    progress = _Progress(comparison.runs)
    findings = []
    try:
        with _bad_input(), closing(comparison.findings(processes, progress.tell)) as arriving:
            for finding in arriving:
                findings.append(finding)
                progress.clear()
                if printing:
                    print_scenario(finding)
    except KeyboardInterrupt:
        progress.clear()
        click.echo(f"interrupted after {progress.done} of {comparison.runs} runs", err=True)
        raise interrupted() from None
    except LoadManagerError as error:
        progress.clear()
        raise click.ClickException(str(error)) from None
    if printing:
        print_notes(findings)
    return findings


def _write_report(html: Path, findings: list["Finding"], told: Mapping[str, str]) -> None:
    from loadmanager.simulator.report_page import write_report

    with _bad_input():
        size = write_report(
            html,
            scenarios={one.name: one.scenario for one in findings},
            found=[compared for one in findings for compared in one.found],
            judged=[judged for one in findings for judged in one.judged],
            pictures={key: picture for one in findings for key, picture in one.pictures.items()},
            settings=told,
        )
    click.echo(f"{html} written, {size / 1e6:.1f} MB", err=True)


class _Progress:
    """A line on a terminal's standard error that says how far it is; nothing elsewhere."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.done = 0
        self._shown = sys.stderr.isatty()
        self._show(f"0 of {runs} runs")

    def tell(self, job: "Job") -> None:
        """Count one run."""
        self.done += 1
        self._show(f"{self.done} of {self.runs} runs: {job}")

    def clear(self) -> None:
        """Take the line away."""
        self._show("")

    def _show(self, line: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
