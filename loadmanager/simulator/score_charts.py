"""Tables of the scores of strategies, and charts that compare strategies."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from loadmanager.charts import Best, Cell, Chart, Column, Html, Json, numbers, shown, table, tag
from loadmanager.simulator.picture import BOUND_HUE, HUES, Picture
from loadmanager.simulator.scores import SCORE_DOCS, ScoreDoc, values_of
from loadmanager.simulator.simulation_jobs import Compared

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
