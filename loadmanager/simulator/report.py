"""The report of the simulator: one HTML file that compares strategies.

Sizes: plotly.js is 4.8 MB of every page. A run of few brokers adds about 10 kB, one of 200 brokers
over a day about 60 kB: its series are downsampled and compressed, and drawn when their
part of the page is opened.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from loadmanager.charts import (
    Best,
    Cell,
    Chart,
    Column,
    Html,
    Json,
    contents,
    folded,
    numbers,
    section,
    shown,
    table,
    tag,
    write_page,
)
from loadmanager.simulator.picture import BOUND_HUE, HUES, LINES, MARKS, POINTS, ROWS, TOP, Picture
from loadmanager.simulator.results import SCORE_DOCS, SCORE_NAMES, ScoreDoc, values_of
from loadmanager.simulator.scenario import BrokerClass, Load, Scenario
from loadmanager.simulator.simulation_jobs import (
    RANKING,
    Compared,
    Judged,
    Outcome,
    modes_of,
    ranked,
)
from loadmanager.simulator.strategies import Strategy

FIRST: Final = (
    "max_over_mean", "priced_gap", "gap", "excess", "overload_min", "balance_s",
    "moves", "returned", "moved_ratio", "interrupted_client_s", "thrash_per_broker_percent",
)  # fmt: skip
"""The scores that are initially shown; the others are folded."""

_REFERRING: Final = ("The same", "How much of that", "Messages that came then")
_NEITHER_GOOD_NOR_BAD: Final = frozenset({"bound", "placed", "drained", "refusals"})
_DOCS: Final[Mapping[str, ScoreDoc]] = {doc.name: doc for doc in SCORE_DOCS}


def score_table(caption: str, found: Mapping[str, Compared], names: Sequence[str] = FIRST) -> Html:
    docs = [_DOCS[name] for name in names]
    columns = [Column(name="strategy"), *(_column(doc) for doc in docs)]
    rows = [[Cell(strategy), *(_cell(one, doc) for doc in docs)] for strategy, one in found.items()]
    return table(caption, columns, rows)


def legend() -> Html:
    parts: list[Html] = []
    for doc in SCORE_DOCS:
        unit = f" ({doc.unit})" if doc.unit else ""
        parts += [tag("dt", doc.title + unit), tag("dd", doc.what, " ", tag("small", doc.name))]
    return tag("dl", *parts)


def _column(doc: ScoreDoc) -> Column:
    better = Best.NEITHER if doc.name in _NEITHER_GOOD_NOR_BAD else Best.LEAST
    said = [*_before(doc), doc.what, *([] if better is Best.NEITHER else ["Less is better."])]
    return Column(name=doc.title, unit=doc.unit, explanation=" ".join(said), best=better)


def _before(doc: ScoreDoc) -> list[str]:
    """Return the descriptions that the description of a score refers to."""
    if not doc.what.startswith(_REFERRING):
        return []
    before = SCORE_DOCS[SCORE_DOCS.index(doc) - 1]
    return _before(before) or [before.what]


def _cell(found: Compared, doc: ScoreDoc) -> Cell:
    spread = found.spreads[doc.name]
    middle, least, most = (never(one) for one in (spread.median, spread.least, spread.most))
    each = ", ".join(written(never(values_of(scores)[doc.name])) for scores in found.runs)
    several = len(found.runs) > 1
    return Cell(
        written(middle),
        middle,
        note=f"{written(least)} to {written(most)}" if written(least) != written(most) else "",
        hover=f"{doc.title}, each seed: {each}" if several else "",
    )


def never(value: float | None) -> float:
    """Return a score, with infinity for "never" and unknown."""
    return math.inf if value is None or math.isnan(value) else value


def written(value: float) -> str:
    if math.isinf(value):
        return "never"
    if value == int(value) or abs(value) >= 100:  # noqa: PLR2004 - where fractions say nothing
        return f"{value:,.0f}"
    if abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.3f}"


_DASHES: Final = ("solid", "dash", "dot")


def highest_loads(pictures: Mapping[str, Picture]) -> Chart:
    axis = next(iter(pictures.values())).axis
    data: list[Mapping[str, Json]] = [
        {
            "type": "scatter",
            "mode": "lines",
            "name": shown(strategy),
            "x": picture.time,
            "y": picture.highest,
            "line": {
                "width": 1.6,
                "color": HUES[place % len(HUES)],
                "dash": _DASHES[place // len(HUES) % len(_DASHES)],
            },
            "hovertemplate": f"{shown(strategy)}: %{{y:.1%}}<extra></extra>",
        }
        for place, (strategy, picture) in enumerate(pictures.items())
    ]
    return Chart(
        title="Highest load of any broker, strategies side by side",
        summary=f"{_ends(pictures)} A click on a name hides its line, two clicks all others.",
        data=[*data, *_bounds(pictures)],
        layout={
            "xaxis": {"title": {"text": axis.unit}, "range": axis.range},
            "yaxis": {"title": {"text": "load"}, "tickformat": ".0%", "rangemode": "tozero"},
            "hovermode": "closest",
            "showlegend": True,
        },
        height_px=max(420, 160 + 20 * len(pictures)),
    )


def _bounds(pictures: Mapping[str, Picture]) -> list[Mapping[str, Json]]:
    """Return the lower bound of the first strategy; it is nearly the same for all."""
    picture = next(iter(pictures.values()))
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": "lower bound",
            "x": picture.time,
            "y": picture.bound,
            "line": {"color": BOUND_HUE, "width": 1.5, "dash": "dash"},
            "hovertemplate": "no assignment has a highest load below %{y:.1%}<extra></extra>",
        }
    ]


def _ends(pictures: Mapping[str, Picture]) -> str:
    ends = {name: picture.highest[-1] for name, picture in pictures.items() if picture.highest}
    known = {name: end for name, end in ends.items() if end is not None}
    if not known:
        return "No broker is left at the end."
    low, high = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
    if low == high:
        return f"At the end {known[low]:.0%}."
    return f"At the end from {known[low]:.0%} ({low}) to {known[high]:.0%} ({high})."


def overview(results: Mapping[str, Mapping[str, Compared]]) -> Chart:
    """Return the chart of medians of one score by strategy and scenario, with a menu of scores.

    ``results`` are by scenario and strategy. Colours compare the strategies in one scenario.
    """
    strategies = list(dict.fromkeys(name for found in results.values() for name in found))
    docs = [doc for doc in SCORE_DOCS if doc.name in FIRST]
    looks = [_look(_medians(results, strategies, doc.name)) for doc in docs]
    heat: Mapping[str, Json] = {
        "type": "heatmap",
        "x": [shown(name) for name in results],
        "y": [shown(name) for name in strategies],
        **looks[0],
        "zmin": 0,
        "zmax": 1,
        "xgap": 2,
        "ygap": 2,
        "texttemplate": "%{text}",
        "hovertemplate": "%{y}<br>%{x}: %{text}<extra></extra>",
        "colorscale": [[0, "#2f9e63"], [0.5, "#d9b44a"], [1, "#c9434e"]],
        "showscale": False,
    }
    return Chart(
        title="Strategies by scenarios",
        summary="Medians over the seeds; green is the best of a scenario, red its worst. "
        "The menu chooses the score.",
        data=[heat],
        layout={
            "xaxis": {"side": "bottom", "tickangle": -35},
            "yaxis": {"autorange": "reversed"},
            "margin": {"t": 60},
            "updatemenus": [_menu(docs, looks)],
        },
        height_px=260 + 24 * len(strategies),
    )


def _menu(docs: Sequence[ScoreDoc], looks: Sequence[Mapping[str, Json]]) -> Mapping[str, Json]:
    buttons: list[Json] = [
        {
            "label": f"{doc.title} {f'({doc.unit})' if doc.unit else ''}".strip(),
            "method": "restyle",
            "args": [{key: [value] for key, value in look.items()}],
        }
        for doc, look in zip(docs, looks, strict=True)
    ]
    return {"buttons": buttons, "x": 0, "xanchor": "left", "y": 1.02, "yanchor": "bottom"}


def _medians(
    results: Mapping[str, Mapping[str, Compared]], strategies: Sequence[str], score: str
) -> list[list[float]]:
    return [
        [
            never(found[name].median(score)) if name in found else math.nan
            for found in results.values()
        ]
        for name in strategies
    ]


def _look(medians: Sequence[Sequence[float]]) -> dict[str, Json]:
    """Return colours and texts of medians: 0 for the best of each column, 1 for the worst."""
    columns = [_placed(column) for column in zip(*medians, strict=True)]
    return {
        "z": [numbers(row) for row in zip(*columns, strict=True)],
        "text": [["" if math.isnan(one) else written(one) for one in row] for row in medians],
    }


def _placed(column: Sequence[float]) -> list[float]:
    """Return the position of each value between the least (0) and the most (1); "never" is 1."""
    finite = [value for value in column if math.isfinite(value)]
    least, most = (min(finite), max(finite)) if finite else (0.0, 0.0)
    width = most - least or 1.0
    return [1.0 if math.isinf(value) else (value - least) / width for value in column]


def facts_of(name: str, scenario: Scenario) -> list[tuple[str, str]]:
    facts = [
        ("scenario", name),
        ("brokers", "; ".join(map(_broker_class, scenario.brokers))),
        ("load", "; ".join(map(_load, scenario.load)) or "none but the trace"),
        ("time", f"{_span(scenario.duration_s)}, the first {_span(scenario.warm_up_s)} warm-up"),
        ("events", str(len(scenario.events)) if scenario.events else "none"),
    ]
    if scenario.trace is not None:
        facts.append(("trace", str(scenario.trace)))
    return facts


def _broker_class(group: BrokerClass) -> str:
    later = "" if group.joined else ", join later"
    return (
        f"{group.count} {group.name} ({group.cores:g} cores, "
        f"{group.network_mbit_per_s / 1000:g} Gbit/s, {group.memory_mib / 1024:g} GiB{later})"
    )


def _load(load: Load) -> str:
    return (
        f"{load.namespace}: {load.topics:,} topics in {load.bundles:,} bundles, "
        f"{load.msgs_in_per_s:,.0f} messages/s of {load.message_bytes:,.0f} bytes"
    )


def _span(seconds: float) -> str:
    for unit, unit_s in (("h", 3600.0), ("min", 60.0)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


_OPENED: Final = 3
"""The most scenarios that are initially unfolded."""

_READ_AT_ONCE: Final = 12
"""The most expectations that are initially unfolded."""

_EXPECTED: Final = "What the scenario expects of the medians, and what was found"

_READING: Final = f"The best of a column is marked; a click on it sorts. Rows stand {RANKING}."


Pictures = Mapping[tuple[str, Strategy], Picture]
"""By name of the scenario and strategy, as in `Finding`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Results:
    name: str
    scenario: Scenario
    found: Mapping[str, Compared]
    pictures: Mapping[str, Picture]
    judged: Sequence[tuple[str, Judged]]


def write_report(
    path: Path,
    *,
    scenarios: Mapping[str, Scenario],
    found: Sequence[Compared],
    judged: Sequence[Judged],
    pictures: Pictures,
    settings: Mapping[str, str],
) -> int:
    """Write the report and return its size in bytes; it only depends on the arguments.

    Args:
        path: the HTML file; an existing one is replaced.
        scenarios: the scenarios by name, which the other arguments refer to.
        found: the scores of strategies; they are shown best first, by `ranked`.
        judged: the judged expectations.
        pictures: pictures of one run of each strategy in each scenario.
        settings: the command's arguments as text, shown at the top.

    Raises:
        MissingCharts: plotly is not installed.
        OSError: the file cannot be written.
    """
    several = len(modes_of(one.strategy for one in found)) > 1
    results = [
        _results(name, scenario, found, judged, pictures, several_modes=several)
        for name, scenario in scenarios.items()
    ]
    return write_page(path, _title(results), *_body(results, settings))


def _body(results: Sequence[_Results], settings: Mapping[str, str]) -> list[Html]:
    overviews = [_overview(results)] if len(results) > 1 else []
    anchors = [f"scenario-{number}" for number in range(1, len(results) + 1)]
    parts = list(zip(results, anchors, strict=True))
    links = [
        *((title, "") for title in ("What was compared", *("Overview" for _ in overviews))),
        *((one.scenario.title, anchor) for one, anchor in parts),
        ("What it means", ""),
    ]
    opened = len(results) <= _OPENED
    return [
        contents(links),
        _compared(results, settings),
        *overviews,
        *(_part(one, anchor, opened=opened) for one, anchor in parts),
        _meaning(),
    ]


def _results(
    name: str,
    scenario: Scenario,
    found: Iterable[Compared],
    judged: Iterable[Judged],
    pictures: Pictures,
    *,
    several_modes: bool,
) -> _Results:
    def called(strategy: Strategy) -> str:
        return f"{strategy.name} ({strategy.mode})" if several_modes else strategy.name

    mine = ranked(one for one in found if one.name == name)
    return _Results(
        name=name,
        scenario=scenario,
        found={called(one.strategy): one for one in mine},
        pictures={called(one.strategy): pictures[name, one.strategy] for one in mine},
        judged=[(called(one.strategy), one) for one in judged if one.name == name],
    )


def _title(results: Sequence[_Results]) -> str:
    if len(results) == 1:
        return f"Simulated: {results[0].scenario.title}"
    return f"{len(results)} scenarios simulated"


def _facts(facts: Iterable[tuple[str, str]]) -> Html:
    pairs = ((tag("dt", name), tag("dd", said)) for name, said in facts)
    return tag("dl", *(part for pair in pairs for part in pair))


def _compared(results: Sequence[_Results], settings: Mapping[str, str]) -> Html:
    compared = [one for result in results for one in result.found.values()]
    seeds = sorted({seed for one in compared for seed in one.seeds})
    judged = [one for result in results for _, one in result.judged]
    facts = [
        ("scenarios", str(len(results))),
        ("strategies", ", ".join(dict.fromkeys(one.strategy.name for one in compared))),
        ("mode", ", ".join(sorted(modes_of(one.strategy for one in compared)))),
        ("seeds", ", ".join(map(str, seeds))),
        *settings.items(),
    ]
    if judged:
        facts.append(("expectations", _counted(judged)))
    return section("What was compared", _facts(facts))


def _counted(judged: Sequence[Judged]) -> str:
    counts = Counter(one.outcome for one in judged)
    return ", ".join(f"{outcome} {counts[outcome]}" for outcome in Outcome if counts[outcome])


def _overview(results: Sequence[_Results]) -> Html:
    found = {result.name: result.found for result in results}
    return section("Overview", overview(found).html())


def _part(result: _Results, anchor: str, *, opened: bool) -> Html:
    scenario = result.scenario
    seeds = max(len(one.seeds) for one in result.found.values())
    caption = (
        f"Medians over {seeds} seeds, least to most in small." if seeds > 1 else "Of one seed."
    )
    several = len(result.found) > 1
    return section(
        scenario.title,
        tag("p", scenario.description),
        _facts(facts_of(result.name, scenario)),
        score_table(f"{caption} {_READING}", result.found),
        _expectations(result.judged),
        folded("All scores", score_table(caption, result.found, SCORE_NAMES)),
        folded(
            "Over time, side by side",
            highest_loads(result.pictures).html(),
            opened=opened and several,
        ),
        *(_run(result, name, opened=opened and not several) for name in result.found),
        anchor=anchor,
    )


def _run(result: _Results, name: str, *, opened: bool) -> Html:
    found = result.found[name]
    remark = [tag("p", found.strategy.remark)] if found.strategy.remark else []
    note = f"load of every broker, seed {found.seeds[0]}"
    return folded(name, *remark, result.pictures[name].chart, note=note, opened=opened)


_TONES: Final = {
    Outcome.HELD: "good",
    Outcome.FAILED: "bad",
    Outcome.SHOWN: "known",
    Outcome.NOT_SHOWN: "bad",
}


def _expectations(judged: Sequence[tuple[str, Judged]]) -> Html:
    if not judged:
        return tag("p", "The scenario expects nothing of these strategies.")
    columns = [Column(name=name) for name in ("strategy", "expected", "found", "outcome")]
    rows = [
        [
            Cell(name),
            Cell(one.expected),
            Cell(one.figures),
            Cell(one.outcome, note=one.expectation.known_failure, tone=_TONES[one.outcome]),
        ]
        for name, one in judged
    ]
    counts = _counted([one for _, one in judged])
    opened = len(rows) <= _READ_AT_ONCE
    return folded("Expectations", table(_EXPECTED, columns, rows), note=counts, opened=opened)


def _meaning() -> Html:
    return section(
        "What it means",
        tag(
            "p",
            "Loads are the truth of the simulated brokers, which no strategy sees: the demand on "
            "the resource a broker has least of, as a fraction of its capacity. Above 100 % it "
            "serves less than it is asked for. The lower bound is proven: no assignment of the "
            "bundles, found by any strategy, has a highest load below it.",
        ),
        tag(
            "p",
            "A mark is a move, or several of one moment, broker and reason. It stands at the load "
            "of the broker they left (or, if unowned before, went to), or in its row of colours; "
            "bundles, brokers, reason and traffic show on hover. Of more than "
            f"{MARKS} marks those with the most traffic are shown; the bars below count all moves. "
            "Vertical dotted lines are "
            "events, the grey part is the warm-up, which no score counts.",
        ),
        tag(
            "p",
            f"Series are thinned to {POINTS} points; each is the highest of its interval, so that "
            f"no peak is lost. Up to {LINES} brokers have a line each; of more there are "
            f"percentiles over the brokers, the {TOP} with the highest peaks, and a row of colours "
            f"for each of up to {ROWS}.",
        ),
        tag("h3", "Scores"),
        legend(),
    )
