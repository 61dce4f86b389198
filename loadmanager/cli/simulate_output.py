"""Comparisons of strategies as tables, and as one JSON document."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, Final

import click

from loadmanager.cli.text_tables import plain_lines, print_table
from loadmanager.config.pairs import PLACEMENT_NAMES, SHEDDER_NAMES
from loadmanager.simulator.catalogue import shipped
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scenario_files import load_scenario
from loadmanager.simulator.scores import SCORE_DOCS, values_of
from loadmanager.simulator.simulation_jobs import (
    RANKING,
    Compared,
    Finding,
    Judged,
    Outcome,
    Spread,
    modes_of,
)

_COLUMNS: Final = (
    ("max_over_mean", "max/mean>"),
    ("max_over_mean_end", "at end>"),
    ("priced_gap", "priced>"),
    ("gap", "gap>"),
    ("excess", "excess>"),
    ("largest_p95", "largest p95>"),
    ("overload_min", "overload min>"),
    ("balance_s", "balance s>"),
    ("moves", "moves>"),
    ("returned", "back>"),
    ("moved_ratio", "moved x>"),
    ("interrupted_client_s", "client-s>"),
    ("thrash_per_broker_percent", "thrash %>"),
)

_WITH_SPREAD: Final = frozenset({"gap", "moves"})

_DIGITS: Final = 9
"""Digits after the point in JSON: more than any score means, fewer than a float has."""

_LARGE: Final = 1000


def print_scenario(finding: Finding) -> None:
    """Print the strategies of one scenario, best first, and the outcomes of expectations."""
    found = finding.found
    several = len(modes_of(one.strategy for one in found)) > 1
    seeds = len(found[0].seeds)
    title = f"{finding.name}: {finding.scenario.title}"
    title += f", medians of {seeds} seeds" if seeds > 1 else ""
    columns = ["strategy", *(["mode"] if several else []), *(column for _, column in _COLUMNS)]
    rows = [
        [
            one.strategy.name,
            *([one.strategy.mode] if several else []),
            *(_cell(score, one.spreads[score]) for score, _ in _COLUMNS),
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


def print_notes(findings: Iterable[Finding]) -> None:
    click.echo(f"\n{RANKING[0].upper()}{RANKING[1:]}.")
    strategies = {one.strategy for finding in findings for one in finding.found}
    for name, remark in sorted({(one.name, one.remark) for one in strategies if one.remark}):
        click.echo(f"{name}: {remark}.")


def print_list() -> None:
    rows = [_scenario_row(name, load_scenario(path)) for name, path in shipped().items()]
    print_table("Scenarios", ("name", "title", "brokers>", "topics>", "hours>"), rows)
    print_table(
        "Strategies, any shedder+placement",
        ("kind", "names"),
        (
            ("shedder", ", ".join(SHEDDER_NAMES)),
            ("placement", ", ".join(PLACEMENT_NAMES)),
        ),
    )
    click.echo("\nScores, of all of which less is better")
    table = [(doc.name, doc.unit, doc.what) for doc in SCORE_DOCS]
    click.echo("\n".join(plain_lines(("name", "unit", "what it says"), table)))


def document_of(findings: Iterable[Finding], settings: Mapping[str, str]) -> dict[str, Any]:
    """Return a comparison as JSON; strategies stand best first, null is never or unknown.

    ``settings`` are the options that change what is simulated, as they were given.
    """
    return {
        "settings": dict(settings),
        "ranking": RANKING,
        "scores": {
            doc.name: {"title": doc.title, "unit": doc.unit, "meaning": doc.what}
            for doc in SCORE_DOCS
        },
        "scenarios": [
            {
                "scenario": one.name,
                "title": one.scenario.title,
                "durationS": one.scenario.duration_s,
                "warmUpS": one.scenario.warm_up_s,
                "strategies": [_strategy(compared) for compared in one.found],
                "expectations": [_expectation(verdict) for verdict in one.judged],
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
            name: {
                "median": _number(spread.median),
                "least": _number(spread.least),
                "most": _number(spread.most),
            }
            for name, spread in one.spreads.items()
        },
        "runs": [
            {"seed": seed} | {name: _number(value) for name, value in values_of(scores).items()}
            for seed, scores in zip(one.seeds, one.runs, strict=True)
        ],
    }


def _expectation(one: Judged) -> dict[str, Any]:
    return {
        "strategy": one.strategy.name,
        "mode": one.strategy.mode,
        "score": one.expectation.score,
        "least": _number(one.expectation.least),
        "most": _number(one.expectation.most),
        "median": _number(one.found.median),
        "outcome": one.outcome.value,
        "knownFailure": one.expectation.known_failure,
    }


def _scenario_row(name: str, scenario: Scenario) -> tuple[str, ...]:
    brokers = sum(group.count for group in scenario.brokers)
    topics = sum(load.topics for load in scenario.load)
    return (name, scenario.title, str(brokers), str(topics), f"{scenario.duration_s / 3600:.3g}")


def _cell(score: str, spread: Spread) -> str:
    never = "never" if score == "balance_s" else "-"
    median = _figure(spread.median, never)
    if score not in _WITH_SPREAD or spread.least == spread.most:
        return median
    return f"{median} ({_figure(spread.least, never)}-{_figure(spread.most, never)})"


def _figure(value: float | None, never: str) -> str:
    if value is None:
        return never
    return f"{value:.0f}" if abs(value) >= _LARGE else f"{value:.3g}"


def _number(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return round(value, _DIGITS)


_SCORES_SHOWN: Final = (("gap", "gap"), ("moved_ratio", "moved"), ("moves", "moves"))
_NEVER: Final = "-"


def print_one_table(findings: Sequence[Finding]) -> None:
    """Print a row for each scenario, medians over the seeds, and their means below."""
    every = [one.strategy for finding in findings for one in finding.found]
    several = len(modes_of(every)) > 1
    named = {f"{one.name} {one.mode}" if several else one.name for one in every}
    names = sorted(named, reverse=True)
    columns = ["bound>", *(f"{name} {shown}>" for name in names for _, shown in _SCORES_SHOWN)]
    figures = [_row_of(one, names) for one in findings]
    rows = [
        [one.name, *map(_plain_cell, found)] for one, found in zip(findings, figures, strict=True)
    ]
    means = [_mean(column) for column in zip(*figures, strict=True)]
    seeds = len(findings[0].found[0].seeds)
    title = f"Scenarios, medians of {seeds} seed{'' if seeds == 1 else 's'}"
    print_table(title, ["scenario", *columns], [*rows, ["mean", *map(_plain_cell, means)]])
    click.echo(
        "\nbound: what the largest demand is at least, whatever the assignment; gap: how far it is "
        "above that, as a fraction of it; moved: traffic of moved bundles, as a multiple of all; "
        "all are means over time but the moves."
    )


def _row_of(finding: Finding, names: Sequence[str]) -> list[float | None]:
    found = {_key(one, names): one for one in finding.found}
    first = finding.found[0]
    return [
        first.median("bound"),
        *(found[name].median(score) for name in names for score, _ in _SCORES_SHOWN),
    ]


def _key(one: Compared, names: Sequence[str]) -> str:
    name = one.strategy.name
    return name if name in names else f"{name} {one.strategy.mode}"


def _mean(column: Sequence[float | None]) -> float | None:
    known = [value for value in column if value is not None]
    return mean(known) if len(known) == len(column) else None


def _plain_cell(value: float | None) -> str:
    return _NEVER if value is None else f"{value:.3g}"
