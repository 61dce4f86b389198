"""One chart: a compressed figure for plotly.js, and its title and summary."""

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
"""A JSON value of a figure."""

_LEAST_POINTS: Final = 3
_TOO_FEW: Final = "there are fewer than three points in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A figure of plotly.js: its traces and its layout, which must not set colours of text.

    ``summary`` describes it, for readers who cannot see it, and is printed after the title. The
    page draws a chart when it becomes visible. A chart that would be empty, or a line between two
    points, is not drawn: a sentence says so instead.
    """

    title: str
    summary: str
    data: Sequence[Mapping[str, Json]]
    layout: Mapping[str, Json] = field(default_factory=dict)
    height_px: int = 420

    def html(self) -> Html:
        # Bars in a chart with lines do not justify lines between two points.
        deciding = [trace for trace in self.data if trace.get("type") != "bar"] or self.data
        if not any(_is_visible(trace) for trace in deciding):
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


def _is_visible(trace: Mapping[str, Json]) -> bool:
    """Return whether a trace has enough values: lines and heat maps need three points in time."""
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
    """Return a figure as base64 of compressed JSON: about a tenth of its size."""
    text = json.dumps(figure, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode()


def numbers(values: ArrayLike, digits: int = 3) -> list[float | None]:
    """Return ``values`` rounded for a figure; values that are not finite become None, a gap."""
    rounded = np.round(np.asarray(values, dtype=np.float64), digits)
    return [value if np.isfinite(value) else None for value in rounded.tolist()]


def shown(text: str) -> str:
    """Return ``text`` escaped for plotly.js, which interprets some markup."""
    return escape(text, quote=False)
