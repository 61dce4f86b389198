"""Formats of numbers and times with their units, and of what charts draw."""

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
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

_SCALE: Final = ((0.0, "#e8f1fb"), (0.35, "#8ec1f0"), (0.6, "#2f80d0"), (0.8, "#7a3b8f"),
                 (1.0, "#7f1d1d"))  # fmt: skip
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


def axis(title: str, form: str = "", *, zero: bool = False, **more: Any) -> dict[str, Json]:
    """Return an axis with a format of its numbers, from 0 on if ``zero``."""
    found: dict[str, Json] = {"title": {"text": title}, **more}
    found |= {"tickformat": form} if form else {}
    return found | ({"rangemode": "tozero"} if zero else {})


Values = Iterable[float | None]


def _drawn(values: Values, digits: int = 5) -> list[float | None]:
    return numbers([float("nan") if value is None else value for value in values], digits)


def line(times: Sequence[Json], values: Values, name: str, colour: str) -> dict[str, Json]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": times,
        "y": _drawn(values, 4),
        "line": {"color": colour, "width": 1.6},
    }


def bars(
    places: Sequence[Json], values: Values, name: str, colour: str = GREY, **more: Any
) -> dict[str, Json]:
    return {
        "type": "bar",
        "name": name,
        "x": places,
        "y": _drawn(values, 4),
        "marker": {"color": colour},
        **more,
    }


def points(x: Values, y: Values, name: str, colour: str, **more: Any) -> dict[str, Json]:
    return {
        "type": "scatter",
        "mode": "markers",
        "name": name,
        "x": _drawn(x),
        "y": _drawn(y),
        "marker": {"color": colour, "size": 8, "opacity": 0.7},
        **more,
    }


def heat(
    x: Sequence[Json], y: Sequence[Json], rows: Iterable[Values], bar: Any, hover: str
) -> dict[str, Json]:
    return {
        "type": "heatmap",
        "x": x,
        "y": y,
        "z": [_drawn(row, 3) for row in rows],
        "zmin": 0,
        "colorscale": [list(one) for one in _SCALE],
        "colorbar": {"thickness": 12, **bar},
        "hovertemplate": f"{hover}<extra></extra>",
    }


def straight(**ends: Any) -> Mapping[str, Json]:
    """Return a dotted line; it is behind what is drawn."""
    dotted = {"color": GREY, "width": 1, "dash": "dot"}
    return {"type": "line", "layer": "below", "line": dotted, **ends}


def diagonal(until: float, since: float = 0.0) -> Mapping[str, Json]:
    return straight(x0=since, y0=since, x1=until, y1=until)


_PREFIXES: Final = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
UNKNOWN: Final = "\N{EN DASH}"
"""Shown in place of a missing number."""

_RESOURCES: Final = {
    "cpu": "CPU",
    "bandwidth_in": "inbound bandwidth",
    "bandwidth_out": "outbound bandwidth",
}
_MINUTE_S, _HOUR_S, _DAY_S = 60.0, 3600.0, 86400.0


def plain(value: float | None, digits: int = 3) -> str:
    """Return a number with some significant digits and thousands; a dash for none."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if value == 0:
        return "0"
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(places, 12)}f}"


def whole(value: float) -> str:
    return f"{value:,.0f}"


def scaled(value: float | None, unit: str) -> str:
    """Return a rate as ``1.2 M messages/s``; a dash for none."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    for factor, prefix in _PREFIXES:
        if abs(value) >= factor:
            return f"{plain(value / factor)} {prefix} {unit}"
    return f"{plain(value)} {unit}"


messages = partial(scaled, unit="/s")
volume = partial(scaled, unit="B/s")


def percent(fraction: float | None, digits: int = 0) -> str:
    """Return a fraction in percent; a dash for none."""
    if fraction is None or not math.isfinite(fraction):
        return UNKNOWN
    return f"{100 * fraction:.{digits}f} %"


percent_1 = partial(percent, digits=1)


def span(seconds: float | None) -> str:
    """Return a duration in a suitable unit; a dash for none."""
    if seconds is None or not math.isfinite(seconds):
        return UNKNOWN
    for unit_s, name in ((_DAY_S, "days"), (_HOUR_S, "h"), (_MINUTE_S, "min")):
        if abs(seconds) >= 2 * unit_s:
            return f"{plain(seconds / unit_s, 2)} {name}"
    return f"{plain(seconds, 2)} s"


def moment(at_ms: float) -> str:
    return f"{_utc(at_ms):%Y-%m-%d %H:%M} UTC"


def on_axis(at_ms: float) -> str:
    return f"{_utc(at_ms):%Y-%m-%d %H:%M:%S}"


def _utc(at_ms: float) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)


def named(resource: str) -> str:
    return _RESOURCES.get(resource, resource.replace("_", " "))


def of_class(name: str) -> str:
    return name or "(no class)"


def many(count: int, one: str, several: str = "") -> str:
    """Return ``1 move`` or ``1,234 moves``."""
    return f"{count:,} {one if count == 1 else several or one + 's'}"
