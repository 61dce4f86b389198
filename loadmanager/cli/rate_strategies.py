"""``loadmanager rate-strategies``: PIP-364's table, measured."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadmanager.cli.options import JOBS_OPTION, option, write_output

if TYPE_CHECKING:
    from loadmanager.simulator.pip_364 import Cell, Figures


@click.command("rate-strategies")
@option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False, writable=True),
    required=True,
    help="Where to write the figures. The package's own are pip_364_model_2.json and, of model 1, "
    "pip_364.json in loadmanager/simulator.",
)
@option(
    "--seeds",
    type=click.IntRange(1),
    help="Number of runs for each median. Without it, as many as of the package's own figures: "
    "1, and 20 of model 1.",
)
@JOBS_OPTION
@option(
    "--model",
    default=2,
    type=click.IntRange(1, 2),
    help="The model of brokers and scores; 1 is the former one.",
)
@option(
    "--scenario",
    "scenarios",
    multiple=True,
    help="Measure only this problem, and keep the file's figures of the others. May be given "
    "again.",
)
@option(
    "--strategy",
    "strategies",
    metavar="A+B,...",
    help="Measure only these pairs, as in `loadmanager simulate`. With --scenario the file keeps "
    "its figures of other pairs, else it has these alone.",
)
def rate_strategies_command(
    *,
    out: Path,
    seeds: int | None,
    jobs: int | None,
    model: int,
    scenarios: tuple[str, ...],
    strategies: str | None,
) -> None:
    """Measure pairs of strategies at the five problems of PIP-364, in both modes, and rate them.

    Every pair takes many minutes. Afterwards `loadmanager config show-strategies` prints the
    guide with the new figures, if they were written into the package.

    \b
    Examples:
      loadmanager rate-strategies --out loadmanager/simulator/pip_364_model_2.json
      loadmanager config show-strategies > docs/strategies.md
      loadmanager rate-strategies --strategy joint+joint,avg+avg --seeds 20 --out rated.json
    """  # noqa: D301 - the backspace keeps click from wrapping the examples
    from loadmanager.config import ConfigError
    from loadmanager.simulator import pip_364
    from loadmanager.simulator.ratings import PROBLEMS
    from loadmanager.simulator.strategies import parse_strategies

    if not out.parent.is_dir():
        raise click.UsageError(f"{out}: no such folder; expected a file to write to")
    jobs = jobs or len(os.sched_getaffinity(0))
    known = [problem.scenario for problem in PROBLEMS]
    if unknown := set(scenarios) - set(known):
        text = f"--scenario {min(unknown)}; expected one of {', '.join(known)}"
        raise click.UsageError(text)
    figures = dict(_kept(out).cells) if scenarios else {}
    began_s = time.monotonic()
    try:
        pairs = [pair.name for pair in parse_strategies(strategies)] if strategies else []
    except ConfigError as error:
        raise click.UsageError(f"--strategy {strategies}: {error}") from None
    measuring = pip_364.measure(
        scenarios or known, pairs=pairs, seeds=seeds, model=model, processes=jobs
    )
    for found in measuring:
        figures |= found
        click.echo(f"{time.monotonic() - began_s:.0f} s", err=True)
        for cell in found:
            click.echo(_told(pip_364.Figures(found), cell))
    write_output(out, pip_364.Figures(figures).to_json())


def _told(figures: "Figures", cell: "Cell") -> str:
    """Return a line with the rating of one pair at one problem, and the medians behind it."""
    medians = ", ".join(f"{key} {figure:g}" for key, figure in figures.medians(cell).items())
    return f"{cell.scenario}, {cell.mode}, {cell.pair}: {figures.rating(cell)} ({medians})"


def _kept(path: Path) -> "Figures":
    from loadmanager.simulator.pip_364 import Figures

    try:
        return Figures.from_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise click.UsageError(f"{path}: {error}; expected figures to add to") from None
