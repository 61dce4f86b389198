"""All scenarios in one table: a row for each, the bound and every strategy by each model."""

from collections.abc import Sequence
from statistics import mean
from typing import Final

import click

from loadmanager.cli.text_tables import print_table
from loadmanager.simulator.comparison import Finding
from loadmanager.simulator.simulation_jobs import Compared, modes_of

_SHOWN: Final = (("gap", "gap"), ("moved_ratio", "moved"), ("moves", "moves"))
_NEVER: Final = "-"


def print_one_table(findings: Sequence[Finding]) -> None:
    """Print a row for each scenario, medians over the seeds, and their means below."""
    models = list(dict.fromkeys(one.scenario.model for one in findings))
    by_name: dict[str, dict[int, Finding]] = {}
    for one in findings:
        by_name.setdefault(one.name, {})[one.scenario.model] = one
    names = _strategies(findings)
    columns = [
        f"{title} {model}>"
        for model in models
        for title in ("bound", *(f"{name} {shown}" for name in names for _, shown in _SHOWN))
    ]
    figures = {
        scenario: [value for model in models for value in _figures(by_model[model], names)]
        for scenario, by_model in by_name.items()
    }
    rows = [[scenario, *map(_cell, found)] for scenario, found in figures.items()]
    means = [_mean(column) for column in zip(*figures.values(), strict=True)]
    seeds = len(findings[0].found[0].seeds)
    title = f"Scenarios, medians of {seeds} seed{'' if seeds == 1 else 's'}"
    print_table(title, ["scenario", *columns], [*rows, ["mean", *map(_cell, means)]])
    click.echo(
        "\nThe last word of a column is the model. bound: what the largest demand is at least, "
        "whatever the assignment; gap: how far it is above that, as a fraction of it; moved: "
        "traffic of moved bundles, as a multiple of all; all are means over time but the moves."
    )


def _strategies(findings: Sequence[Finding]) -> list[str]:
    """Return the names of the strategies in a fixed order, with the mode where there are two."""
    every = [one.strategy for finding in findings for one in finding.found]
    several = len(modes_of(every)) > 1
    named = {f"{one.name} {one.mode}" if several else one.name for one in every}
    return sorted(named, reverse=True)


def _figures(finding: Finding, names: Sequence[str]) -> list[float | None]:
    found = {_key(one, names): one for one in finding.found}
    first = finding.found[0]
    return [
        first.median("bound"),
        *(found[name].median(score) for name in names for score, _ in _SHOWN),
    ]


def _key(one: Compared, names: Sequence[str]) -> str:
    name = one.strategy.name
    return name if name in names else f"{name} {one.strategy.mode}"


def _mean(column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return mean(known) if len(known) == len(column) else None


def _cell(value: float | None) -> str:
    return _NEVER if value is None else f"{value:.3g}"
