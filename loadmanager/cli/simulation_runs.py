"""The runs of ``loadmanager simulate``: the request, the progress, and the output."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadmanager.cli.options import interrupted

if TYPE_CHECKING:
    from loadmanager.simulator.comparison import Comparison, Finding
    from loadmanager.simulator.simulation_jobs import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What is to be simulated, as options have it; no ``scenarios`` are all shipped ones."""

    scenarios: tuple[str, ...]
    strategies: str
    mode: str
    settings: tuple[str, ...]
    seeds: int
    first_seed: int | None
    trace: Path | None
    model: int | None
    jobs: int | None

    @property
    def changes(self) -> Mapping[str, str]:
        """The options that change what is simulated, as they were given."""
        given = {
            "--set": ", ".join(self.settings),
            "--trace": str(self.trace or ""),
            "--model": str(self.model or ""),
        }
        return {option: value for option, value in given.items() if value}

    def by_both_models(self) -> list["Wish"]:
        """Return it by each model; by the one that is named, if any."""
        return [self] if self.model else [replace(self, model=2), replace(self, model=1)]


def print_all_that_is_there() -> None:
    """Print the scenarios, the strategies and the scores."""
    from loadmanager.cli.simulating import print_list

    with _bad_input():
        print_list()


def simulated(
    wishes: Sequence[Wish], html: Path | None, history: Path | None, *, printing: bool
) -> list["Finding"]:
    """Return the findings; all faults of a request are reported before any run."""
    with _bad_input():
        comparisons = [_kept(_comparison(wish), html, history) for wish in wishes]
    findings: list[Finding] = []
    for wish, comparison in zip(wishes, comparisons, strict=True):
        processes = wish.jobs or len(os.sched_getaffinity(0))
        findings += _found(comparison, processes, printing=printing)
    return findings


def print_json(findings: Sequence["Finding"], wish: Wish) -> None:
    """Print the findings as one JSON document."""
    from loadmanager.cli.simulating import document_of

    click.echo(json.dumps(document_of(findings, wish.changes), indent=2))


def _comparison(wish: Wish) -> "Comparison":
    """Return the comparison; all of its faults are reported now."""
    from loadmanager.simulator.catalogue import shipped
    from loadmanager.simulator.comparison import (
        Comparison,
        check_settings,
        load_scenarios,
    )
    from loadmanager.simulator.strategies import MODES, parse_strategies

    modes = [one for one in MODES if wish.mode in {one, "both"}]
    pairs = parse_strategies(wish.strategies, modes, wish.settings)
    scenarios = load_scenarios(wish.scenarios or shipped(), wish.trace, wish.model)
    check_settings(scenarios.values(), pairs)
    judging = not wish.changes
    if not judging and any(scenario.expect for scenario in scenarios.values()):
        click.echo("expectations are not judged: they are of scenarios as they are", err=True)
    return Comparison(
        scenarios=scenarios,
        strategies=pairs,
        seeds=wish.seeds,
        first_seed=wish.first_seed,
        judging=judging,
    )


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
    """Return it with its output; output that cannot be written is reported before any run."""
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
    """Return the findings; print each scenario's tables as soon as they are known."""
    from loadmanager.cli.simulating import print_notes, print_scenario
    from loadmanager.core.errors import LoadManagerError

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


def write_page(html: Path, findings: Sequence["Finding"], wish: Wish) -> None:
    """Write a report with plots."""
    from loadmanager.simulator.report_page import write_report

    with _bad_input():
        size = write_report(
            html,
            scenarios={one.name: one.scenario for one in findings},
            found=[compared for one in findings for compared in one.found],
            judged=[judged for one in findings for judged in one.judged],
            pictures={key: picture for one in findings for key, picture in one.pictures.items()},
            settings=wish.changes,
        )
    click.echo(f"{html} written, {size / 1e6:.1f} MB", err=True)


class _Progress:
    """A progress line on standard error if that is a terminal."""

    def __init__(self, runs: int) -> None:
        self.runs = runs
        self.done = 0
        self._shown = sys.stderr.isatty()
        self._show(f"0 of {runs} runs")

    def count(self, job: "Job") -> None:
        """Count one run."""
        self.done += 1
        self._show(f"{self.done} of {self.runs} runs: {job}")

    def clear(self) -> None:
        """Remove the line."""
        self._show("")

    def _show(self, line: str) -> None:
        if self._shown:
            click.echo(f"\r\x1b[K{line}", nl=False, err=True)
