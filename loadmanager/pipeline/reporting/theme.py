"""The style of the report's charts: colours for all kinds of colour vision, axes, legends."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from loadmanager.charts import Json, numbers

COLOURS: Final = ("#0b62c4", "#c2410c", "#0f766e", "#a21caf", "#a16207", "#475569", "#be123c")
"""Colours of categories."""

GREY: Final = "#7d8793"

VERDICTS: Final = {
    "helped": "#15803d",
    "no difference": "#7d8793",
    "hurt": "#c2410c",
    "unknown": "#c9cfd8",
}

SCALE: Final[list[list[float | str]]] = [
    [0.0, "#e8f1fb"],
    [0.35, "#8ec1f0"],
    [0.6, "#2f80d0"],
    [0.8, "#7a3b8f"],
    [1.0, "#7f1d1d"],
]
"""Colour scale from idle to full."""

_LEGEND: Final = {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"}


def layout(**more: Any) -> Mapping[str, Json]:
    """Return a layout with the legend above the chart, where it takes no width."""
    return {
        "legend": _LEGEND,
        "margin": {"l": 55, "r": 15, "t": 40, "b": 40},
        "hovermode": "closest",
        **more,
    }


def line(
    times: Sequence[Json], values: Sequence[float | None], name: str, colour: str
) -> dict[str, Json]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": times,
        "y": numbers([float("nan") if value is None else value for value in values], 4),
        "line": {"color": colour, "width": 1.6},
    }


def bars(
    places: Sequence[Json], values: Sequence[float | None], name: str, colour: str = GREY
) -> dict[str, Json]:
    return {
        "type": "bar",
        "name": name,
        "x": places,
        "y": numbers([float("nan") if value is None else value for value in values], 4),
        "marker": {"color": colour},
    }


def points(
    x: Sequence[float | None], y: Sequence[float | None], name: str, colour: str, **more: Any
) -> dict[str, Json]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": numbers([float("nan") if value is None else value for value in x], 5),
        "y": numbers([float("nan") if value is None else value for value in y], 5),
        "marker": {"color": colour, "size": 6, "opacity": 0.65},
        **more,
    }


def diagonal(until: float) -> Mapping[str, Json]:
    return {
        "type": "line", "x0": 0, "y0": 0, "x1": until, "y1": until, "layer": "below",
        "line": {"color": GREY, "width": 1, "dash": "dot"},
    }  # fmt: skip
