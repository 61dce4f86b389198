"""The runs of ``loadmanager simulate``: the request, the progress, the history, and the output."""

import math
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import chain, count, islice
from pathlib import Path
from statistics import mean
from typing import Any, Final, Self

import click

from loadmanager.adapters.history.sink import recorded
from loadmanager.adapters.history.storage import Disk
from loadmanager.charts import MissingCharts, check_place
from loadmanager.cli.options import ending, interrupted, print_json, print_table
from loadmanager.config import ConfigError
from loadmanager.config.strategies import PLACEMENT_NAMES, SHEDDER_NAMES
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.history.records import Origin
from loadmanager.core.planner import Planner
from loadmanager.simulator.recording import Recording, origin_of
from loadmanager.simulator.results import FIRST_SCORES, SCORE_DOCS, Witness
from loadmanager.simulator.scenario import ScenarioError
from loadmanager.simulator.scenario_files import load_scenario, shipped
from loadmanager.simulator.simulation_jobs import (
    RANKING,
    Compared,
    Comparison,
    Finding,
    Job,
    Outcome,
    Spread,
    check_settings,
    load_scenarios,
)
from loadmanager.simulator.strategies import MODES, parse_strategies
from loadmanager.telemetry.logging import warnings_alone
from loadmanager.telemetry.visible import beneath

_MOST_SHOWN: Final = 5
"""Maximum number of faults printed: a thousand runs usually have the same one."""


@dataclass(frozen=True, slots=True)
class SimulatedHistory:
    """Creates a witness for each run that writes its history.

    A single run writes to the folder itself, as a cluster would. Of several, each
    has a folder of its own in it. ``folders`` are then those of the scenarios, by the
    names they were requested by, and None for a single run.
    """

    folder: Path
    folders: Mapping[str, Path] | None

    @classmethod
    def of(cls, folder: Path, comparison: Comparison) -> Self:
        """Return the history of all runs of a comparison, to be written below ``folder``.

        Raises `ConfigError`: there is history of other runs already where one is to be written.
        """
        several = comparison.runs > 1
        history = cls(folder, _folders(folder, comparison.scenarios) if several else None)
        taken = list(islice(history.taken(comparison.jobs()), _MOST_SHOWN))
        if taken:
            raise ConfigError(taken)
        return history

    def taken(self, jobs: Iterable[Job]) -> Iterator[str]:
        """Yield a fault for each folder that holds the history of others.

        What the same run wrote before is no fault: it is written again, byte for byte.
        """
        expected = {self.folder_of(job): _origin(job).instance for job in jobs}
        for folder, instance in {self.folder: "", **expected}.items():
            files = (one for one in Disk().find(folder) if one.name.instance != instance)
            other = next((one.path for one in files), None)
            if other is None and self.folders is None:
                other = next(folder.glob("*/*-seed-*/date=*"), None)
            if other is not None:
                yield (
                    f"--history {self.folder}: {folder} holds the history of another run or "
                    f"cluster already, such as {other.relative_to(folder)}, and the two would be "
                    "mixed; expected a new folder, or delete what is there"
                )

    def renamed(self) -> Iterator[tuple[str, Path]]:
        """Yield the scenarios that share their file's name with one before, and their folders."""
        for name, folder in (self.folders or {}).items():
            if folder.name != Path(name).stem:
                yield name, folder

    @contextmanager
    def __call__(self, job: Job, planner: Planner) -> Iterator[Witness]:
        """Give the witness of one run; raises `HistoryUnavailable` if not all was written."""
        with warnings_alone(), recorded(self.folder_of(job), _origin(job)) as sink:
            yield Recording(job.scenario, planner, sink)

    def folder_of(self, job: Job) -> Path:
        if self.folders is None:
            return self.folder
        strategy = job.strategy
        return self.folders[job.name] / f"{strategy.name}-{strategy.mode}-seed-{job.seed}"


def _origin(job: Job) -> Origin:
    strategy = job.strategy
    text = " ".join([strategy.name, strategy.mode, *strategy.settings])
    return origin_of(job.scenario, text, job.seed)


def _folders(folder: Path, names: Iterable[str]) -> dict[str, Path]:
    """Return a folder for each scenario, named after its file, numbered where equal."""
    stems = {name: Path(name).stem for name in names}
    taken: set[str] = set()
    found: dict[str, Path] = {}
    for name, stem in stems.items():
        numbered = (f"{stem}-{number}" for number in count(2))
        others = (one for one in numbered if one not in stems.values())
        called = next(one for one in chain([stem], others) if one not in taken)
        taken.add(called)
        found[name] = folder / called
    return found


_WITH_SPREAD: Final = frozenset({"gap", "moves"})

_DIGITS: Final = 9
"""Digits after the point in JSON: more than any score means, fewer than a float has."""

_LARGE: Final = 1000

_SCORES_SHOWN: Final = (("gap", "gap"), ("moved_ratio", "moved"), ("moves", "moves"))


def print_scenario(finding: Finding) -> None:
    """Print the strategies of one scenario, best first, and the outcomes of expectations."""
    found = finding.found
    several = len({one.strategy.mode for one in found}) > 1
    seeds = len(found[0].seeds)
    title = f"{finding.name}: {finding.scenario.title}"
    title += f", medians of {seeds} seeds" if seeds > 1 else ""
    titles = (f"{SCORE_DOCS[score].title}>" for score in FIRST_SCORES)
    columns = ["strategy", *["mode"] * several, *titles]
    rows = [
        [
            one.strategy.name,
            *[one.strategy.mode] * several,
            *(_cell(score, one.spreads[score]) for score in FIRST_SCORES),
        ]
        for one in found
    ]
    print_table(title, columns, rows)
    held = sum(one.outcome is Outcome.HELD for one in finding.judged)
    if held:
        click.echo(f"{held} expectation{'' if held == 1 else 's'} held")
    for one in finding.judged:
        if one.outcome is not Outcome.HELD:
            click.echo(str(one))


def _cell(score: str, spread: Spread) -> str:
    median, least, most = (
        ("never" if score == "balance_s" else "-")
        if value is None
        else f"{value:.0f}"
        if abs(value) >= _LARGE
        else f"{value:.3g}"
        for value in (spread.median, spread.least, spread.most)
    )
    several = score in _WITH_SPREAD and least != most
    return f"{median} ({least}-{most})" if several else median


def print_what_exists() -> None:
    rows = []
    for name, path in shipped().items():
        with _bad_input():
            one = load_scenario(path)
        topics = sum(load.topics for load in one.load)
        hours = f"{one.duration_s / 3600:.3g}"
        rows.append((name, one.title, str(len(one.broker_names)), str(topics), hours))
    print_table("Scenarios", ("name", "title", "brokers>", "topics>", "hours>"), rows)
    print_table(
        "Strategies, any shedder+placement",
        ("kind", "names"),
        (("shedder", ", ".join(SHEDDER_NAMES)), ("placement", ", ".join(PLACEMENT_NAMES))),
    )
    scores = [(doc.name, doc.unit, doc.what) for doc in SCORE_DOCS.values()]
    title = "Scores, of all of which less is better"
    print_table(title, ("name", "unit", "what it says"), scores)


def document_of(findings: Iterable[Finding], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return a comparison as JSON; strategies stand best first, null is never or unknown.

    ``settings`` are the options that change what is simulated, as they were given.
    """
    return {
        "settings": dict(settings),
        "ranking": RANKING,
        "scores": {
            doc.name: {"title": doc.title, "unit": doc.unit, "meaning": doc.what}
            for doc in SCORE_DOCS.values()
        },
        "scenarios": [
            {
                "scenario": one.name,
                "title": one.scenario.title,
                "durationS": one.scenario.duration_s,
                "warmUpS": one.scenario.warm_up_s,
                "strategies": [_strategy(compared) for compared in one.found],
                "expectations": [
                    {
                        "strategy": verdict.strategy.name,
                        "mode": verdict.strategy.mode,
                        "score": verdict.expectation.score,
                        "least": _number(verdict.expectation.least),
                        "most": _number(verdict.expectation.most),
                        "median": _number(verdict.found.median),
                        "outcome": verdict.outcome.value,
                        "knownFailure": verdict.expectation.known_failure,
                    }
                    for verdict in one.judged
                ],
            }
            for one in findings
        ],
    }


def _strategy(one: Compared) -> dict[str, Any]:
    return {
        "strategy": one.strategy.name,
        "mode": one.strategy.mode,
        "settings": list(one.strategy.settings),
        "remark": one.strategy.remark,
        "scores": {
            name: {key: _number(value) for key, value in asdict(spread).items()}
            for name, spread in one.spreads.items()
        },
        "runs": [
            {"seed": seed} | {name: _number(value) for name, value in asdict(scores).items()}
            for seed, scores in zip(one.seeds, one.runs, strict=True)
        ],
    }


def _number(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, _DIGITS)


def print_one_table(findings: Sequence[Finding]) -> None:
    """Print a row for each scenario, medians over the seeds, and their means below."""
    first = findings[0].found
    several = len({one.strategy.mode for one in first}) > 1
    names = {
        one.strategy: f"{one.strategy.name} {one.strategy.mode}" if several else one.strategy.name
        for one in sorted(first, key=lambda one: (one.strategy.name, one.strategy.mode))[::-1]
    }
    columns = [f"{name} {shown}>" for name in names.values() for _, shown in _SCORES_SHOWN]
    rows: dict[str, list[float | None]] = {}
    for finding in findings:
        found = {one.strategy: one for one in finding.found}
        medians = (found[one].median(score) for one in names for score, _ in _SCORES_SHOWN)
        rows[finding.name] = [finding.found[0].median("bound"), *medians]
    means = [
        mean([value for value in column if value is not None]) if None not in column else None
        for column in zip(*rows.values(), strict=True)
    ]
    seeds = len(first[0].seeds)
    print_table(
        f"Scenarios, medians of {seeds} seed{'' if seeds == 1 else 's'}",
        ["scenario", "bound>", *columns],
        [
            [name, *("-" if value is None else f"{value:.3g}" for value in row)]
            for name, row in [*rows.items(), ("mean", means)]
        ],
    )
    click.echo(
        "\nbound: what the largest demand is at least, whatever the assignment; gap: how far it is "
        "above that, as a fraction of it; moved: traffic of moved bundles, as a multiple of all; "
        "all are means over time but the moves."
    )


def simulate(
    *,
    scenarios: tuple[str, ...],
    strategies: tuple[str, ...],
    mode: str,
    settings: tuple[str, ...],
    seeds: int,
    first_seed: int | None,
    trace: Path | None,
    jobs: int | None,
    html: Path | None,
    history: Path | None,
    as_json: bool,
    table: bool,
) -> None:
    """Run what is asked for and print it; all faults of a request are reported before any run.

    No ``scenarios`` are all shipped ones. Ends with 1 if an expectation did not hold, with 2 on bad
    input.
    """
    given = {"--set": ", ".join(settings), "--trace": str(trace or "")}
    changes = {name: value for name, value in given.items() if value}
    with _bad_input():
        modes = [one for one in MODES if mode in {one, "both"}]
        pairs = parse_strategies(",".join(strategies) or "*", modes, settings)
        loaded = load_scenarios(scenarios or shipped(), trace)
        check_settings(loaded.values(), pairs)
        if changes and any(scenario.expect for scenario in loaded.values()):
            click.echo("expectations are not judged: they are of scenarios as they are", err=True)
        comparison = Comparison(
            scenarios=loaded,
            strategies=pairs,
            seeds=seeds,
            first_seed=first_seed,
            judging=not changes,
        )
        comparison = _kept(comparison, html, history)
    processes = jobs or len(os.sched_getaffinity(0))
    findings = _found(comparison, processes, printing=not (as_json or table))
    if as_json:
        print_json(document_of(findings, changes))
    elif table:
        print_one_table(findings)
    if html is not None:
        from loadmanager.simulator.report import write_report

        with _bad_input():
            size = write_report(html, findings, changes)
        click.echo(f"{html} written, {size / 1e6:.1f} MB", err=True)
    failed = [one for finding in findings for one in finding.judged if not one.holds]
    for one in failed if as_json else ():
        click.echo(str(one), err=True)
    if failed:
        raise click.exceptions.Exit(1)


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
        click.echo(f"\n{RANKING[0].upper()}{RANKING[1:]}.")
        strategies = {one.strategy for finding in findings for one in finding.found}
        for name, remark in sorted({(one.name, one.remark) for one in strategies if one.remark}):
            click.echo(f"{name}: {remark}.")
    return findings


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
