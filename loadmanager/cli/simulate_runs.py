"""The runs of ``loadmanager simulate``: the request, the progress, and the output."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import click

from loadmanager.charts import MissingCharts, check_place
from loadmanager.cli.options import ending, interrupted, print_json
from loadmanager.cli.simulate_history import SimulatedHistory
from loadmanager.cli.simulate_output import (
    document_of,
    print_list,
    print_notes,
    print_one_table,
    print_scenario,
)
from loadmanager.config import ConfigError
from loadmanager.core.errors import LoadManagerError
from loadmanager.simulator.catalogue import shipped
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.simulation_jobs import (
    Comparison,
    Finding,
    Job,
    check_settings,
    load_scenarios,
)
from loadmanager.simulator.strategies import MODES, parse_strategies
from loadmanager.telemetry.visible import beneath


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationRequest:
    """What is to be simulated, as options have it; no ``scenarios`` are all shipped ones."""

    scenarios: tuple[str, ...]
    strategies: tuple[str, ...]
    mode: str
    settings: tuple[str, ...]
    seeds: int
    first_seed: int | None
    trace: Path | None
    jobs: int | None

    @property
    def changes(self) -> Mapping[str, str]:
        given = {
            "--set": ", ".join(self.settings),
            "--trace": str(self.trace or ""),
        }
        return {option: value for option, value in given.items() if value}


def print_what_exists() -> None:
    with _bad_input():
        print_list()


def simulate(
    request: SimulationRequest,
    *,
    html: Path | None,
    history: Path | None,
    as_json: bool,
    table: bool,
) -> None:
    """Run what is asked for and print it; all faults of a request are reported before any run.

    Ends with 1 if an expectation did not hold, with 2 on bad input.
    """
    with _bad_input():
        comparison = _kept(_comparison(request), html, history)
    processes = request.jobs or len(os.sched_getaffinity(0))
    findings = _found(comparison, processes, printing=not (as_json or table))
    if as_json:
        print_json(document_of(findings, request.changes))
    elif table:
        print_one_table(findings)
    if html is not None:
        _write_page(html, findings, request)
    failed = [one for finding in findings for one in finding.judged if not one.holds]
    for one in failed if as_json else ():
        click.echo(str(one), err=True)
    if failed:
        raise click.exceptions.Exit(1)


def _comparison(request: SimulationRequest) -> Comparison:
    """Return the comparison; all of its faults are reported now."""
    modes = [one for one in MODES if request.mode in {one, "both"}]
    pairs = parse_strategies(",".join(request.strategies) or "*", modes, request.settings)
    scenarios = load_scenarios(request.scenarios or shipped(), request.trace)
    check_settings(scenarios.values(), pairs)
    judging = not request.changes
    if not judging and any(scenario.expect for scenario in scenarios.values()):
        click.echo("expectations are not judged: they are of scenarios as they are", err=True)
    return Comparison(
        scenarios=scenarios,
        strategies=pairs,
        seeds=request.seeds,
        first_seed=request.first_seed,
        judging=judging,
    )


@contextmanager
def _bad_input() -> Iterator[None]:
    """End with 2, and a line for each fault, if something that was given cannot be used."""
    try:
        with ending(ConfigError, ScenarioError, MissingCharts, code=2):
            yield
    except OSError as error:
        if error.filename is None:  # a broken pipe is no input
            raise
        click.echo(f"{error.filename}: {error.strerror}", err=True)
        raise click.exceptions.Exit(2) from None


def _kept(comparison: Comparison, html: Path | None, history: Path | None) -> Comparison:
    """Return it with its output; output that cannot be written is reported before any run."""
    if html is not None:
        if find_spec("plotly") is None:
            raise MissingCharts
        check_place(html)
        comparison = replace(comparison, pictured=True)
    if history is not None:
        witnessed = SimulatedHistory.of(history, comparison)
        for name, folder in witnessed.renamed():
            click.echo(f"{name}: its history goes to {folder}, for another has its name", err=True)
        history.mkdir(parents=True, exist_ok=True)
        comparison = replace(comparison, witnessed=witnessed)
    return comparison


def _found(comparison: Comparison, processes: int, *, printing: bool) -> list[Finding]:
    progress = _Progress(comparison.runs)
    findings = []
    try:
        with _bad_input(), closing(comparison.findings(processes, progress.count)) as arriving:
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


def _write_page(html: Path, findings: Sequence[Finding], request: SimulationRequest) -> None:
    from loadmanager.simulator.report_page import write_report

    with _bad_input():
        size = write_report(
            html,
            scenarios={one.name: one.scenario for one in findings},
            found=[compared for one in findings for compared in one.found],
            judged=[judged for one in findings for judged in one.judged],
            pictures={key: picture for one in findings for key, picture in one.pictures.items()},
            settings=request.changes,
        )
    click.echo(f"{html} written, {size / 1e6:.1f} MB", err=True)


class _Progress:
    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.done = 0
        self._shown = sys.stderr.isatty()
        self._show(f"0 of {runs} runs")

    def count(self, job: Job) -> None:
        self.done += 1
        self._show(f"{self.done} of {self.runs} runs: {job}")

    def clear(self) -> None:
        self._show("")

    def _show(self, line: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{line}", file=beneath(sys.stderr), nl=False)
