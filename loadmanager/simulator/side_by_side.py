"""Charts that compare strategies: over time, and over scenarios."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from loadmanager.charts import Chart, Json, numbers, shown
from loadmanager.simulator.picture import BOUND_HUE, HUES, Picture
from loadmanager.simulator.score_tables import FIRST, never, written
from loadmanager.simulator.scores import SCORE_DOCS, ScoreDoc
from loadmanager.simulator.simulation_jobs import Compared

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
