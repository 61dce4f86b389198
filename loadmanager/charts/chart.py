"""One chart: what plotly.js is to draw, packed small, and the words that go with it."""

import base64
import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from loadmanager.charts.markup import Html, tag

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"
"""A value of a figure."""

_LEAST_POINTS: Final = 3
_TOO_FEW: Final = "there are fewer than three points in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure of plotly.js: its traces and its layout, which leaves colours of text alone.

    ``summary`` describes it in words, for readers who cannot see it, and stands
    under the title for the others. The page draws a chart when it comes into sight. One that
    would be empty, or a line between two points, is not drawn: the text says so instead.
    """

    title: str
    summary: str
    data: Sequence[Mapping[str, Json]]
    layout: Mapping[str, Json] = field(default_factory=dict)
    height_px: int = 420

    def html(self) -> Html:
        """Return the element that the page's script draws the figure into."""
        # Bars that go along with lines are no reason to draw lines between two points.
        deciding = [trace for trace in self.data if trace.get("type") != "bar"] or self.data
        if not any(_to_be_seen(trace) for trace in deciding):
            return tag("p", tag("strong", self.title), f" is not drawn: {_TOO_FEW}.")
        caption = tag("figcaption", tag("strong", self.title), " ", tag("span", self.summary))
        place = tag(
            "div",
            class_="plot",
            role="img",
            aria_label=f"{self.title}. {self.summary}",
            style=f"height:{self.height_px}px",
        )
        packed = Html(_packed({"data": self.data, "layout": self.layout}))
        return tag("figure", caption, place, tag("script", packed, type="application/x-chart"))


def _to_be_seen(trace: Mapping[str, Json]) -> bool:
    """Return whether a trace has anything to see: of lines and maps, a course of three or more."""
    values = trace.get("z", trace.get("y"))
    if trace.get("type") == "bar" and trace.get("orientation") == "h":
        values = trace.get("x")
    if not isinstance(values, Sequence):
        return True
    if trace.get("type") == "heatmap":
        rows = [_known(row) for row in values if isinstance(row, Sequence)]
        return max(rows, default=0) >= _LEAST_POINTS
    return _known(values) >= (_LEAST_POINTS if trace.get("mode") == "lines" else 1)


def _known(values: Sequence[Json]) -> int:
    return sum(value is not None for value in values)


def _packed(figure: Mapping[str, Json]) -> str:
    """Return a figure as base64 of deflated JSON: about a tenth of its size."""
    text = json.dumps(figure, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def numbers(values: ArrayLike, digits: int = 3) -> list[float | None]:
    """Return ``values`` rounded for a figure: a gap where one is not finite."""
    rounded = np.round(np.asarray(values, dtype=np.float64), digits)
    return [value if np.isfinite(value) else None for value in rounded.tolist()]


def shown(text: str) -> str:
    """Return ``text`` such that plotly.js, which understands some markup, shows it as it is."""
    return escape(text, quote=False)
