"""The picture of one run in a report: its chart, and the loads for comparison of strategies.

It is small enough to be sent between processes: a run of a day with 1,000 brokers has millions of
numbers, its picture some ten thousand.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.charts import Chart, Html, Json, joined, numbers, tag
from loadmanager.simulator.move_marks import move_bars, move_marks, name_of
from loadmanager.simulator.run import RESOURCES, Run, Timeline
from loadmanager.simulator.thinning import Thinned, thinned
from loadmanager.simulator.time_axis import TimeAxis

LINES: Final = 12
"""The most brokers with one line each; more are shown as bands and the `TOP` highest peaks."""

TOP: Final = 5

ROWS: Final = 200
"""The most rows of the heat map."""

CELLS: Final = 24_000
"""The most cells of the heat map: a column may combine several intervals."""

HUES: Final = (
    "#3b82d6", "#e07b27", "#2f9e63", "#d0505a", "#8f6bd1", "#a0714f",
    "#d769b0", "#7d8793", "#a9a527", "#21a6b8", "#5f6fd8", "#c2457a",
)  # fmt: skip
BOUND_HUE: Final = "#d6336c"
_BEHIND_MARKS: Final[Mapping[str, Json]] = {
    "mode": "lines+markers",
    "marker": {"size": 24, "opacity": 0},
}
"""On hover plotly.js prefers the smallest point: with large invisible points on a line, the marks
of moves on it take precedence."""

_HEAT: Final = ((0.0, "#123a63"), (0.45, "#2a9d8f"), (0.8, "#f4c95d"), (1.0, "#d62839"))


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Picture:
    chart: Html
    axis: TimeAxis
    time: tuple[float | None, ...]
    highest: tuple[float | None, ...]
    bound: tuple[float | None, ...]


def picture_of(run: Run) -> Picture:
    loads = thinned(run.timeline)
    axis = TimeAxis.of(run.duration_s)
    return Picture(
        chart=joined((chart_of(run, loads, axis).html(), tag("p", _rounds(run)))),
        axis=axis,
        time=tuple(numbers(axis.shown(loads.time_s))),
        highest=tuple(numbers(loads.highest)),
        bound=tuple(numbers(loads.bound)),
    )


def _rounds(run: Run) -> str:
    reasons = sorted(run.refusals.items(), key=lambda one: (-one[1], one[0]))
    text = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in reasons)
    return f"The leader did {run.rounds:,} rounds. Refusals: {text or 'none'}."


def chart_of(run: Run, loads: Thinned, axis: TimeAxis) -> Chart:
    many = len(run.timeline.brokers) > LINES
    traces = _bands(run.timeline, loads, axis) if many else _lines(run.timeline, loads, axis)
    rows = _rows(run.timeline, loads) if many else {}
    marks = move_marks(run, axis, rows if many else None)
    # plotly.js orders the rows as in the first trace that has them.
    colours = [_heat(rows, loads, axis)] if many else []
    traces += [_bound(loads, axis), *colours, *marks.traces, move_bars(run, axis)]
    happened, lines = axis.events(run.happened, height=_height(loads))
    return Chart(
        title="Load of the brokers",
        summary=f"{_in_words(run, loads, axis)} {marks.note}".strip(),
        data=[*traces, *happened],
        layout=_layout(run, axis, lines, many=many),
        height_px=780 if many else 520,
    )


def _lines(timeline: Timeline, loads: Thinned, axis: TimeAxis) -> list[Mapping[str, Json]]:
    return [
        {
            **axis.line(loads.time_s, loads.load[:, row], name_of(broker)),
            **_BEHIND_MARKS,
            "line": {"color": HUES[row % len(HUES)], "width": 1.6},
            "text": _resources(loads, row),
            "hovertemplate": f"{name_of(broker)}: %{{y:.1%}} (%{{text}})<extra></extra>",
        }
        for row, broker in enumerate(timeline.brokers)
    ]


def _resources(loads: Thinned, row: int) -> list[str]:
    return [RESOURCES[place].replace("_", " ") for place in loads.resource[:, row].tolist()]


def _bands(timeline: Timeline, loads: Thinned, axis: TimeAxis) -> list[Mapping[str, Json]]:
    low, high = loads.percentile(0.05), loads.percentile(0.95)
    hue = HUES[0]
    traces: list[Mapping[str, Json]] = [
        {**axis.line(loads.time_s, low, "p5"), "line": {"color": hue, "width": 0.5}},
        {
            **axis.line(loads.time_s, high, "p95"),
            "line": {"color": hue, "width": 0.5},
            "fill": "tonexty",
            "fillcolor": "rgba(59,130,214,0.22)",
        },
        {
            **axis.line(loads.time_s, loads.percentile(0.5), "median"),
            "line": {"color": hue, "width": 2},
        },
        {
            **axis.line(loads.time_s, loads.highest, "highest"),
            "line": {"color": HUES[3], "width": 2},
        },
    ]
    for place, row in enumerate(_by_peak(loads)[:TOP]):
        line = axis.line(loads.time_s, loads.load[:, row], name_of(timeline.brokers[row]))
        traces.append({**line, "line": {"color": HUES[1 + place], "width": 1, "dash": "dot"}})
    return [
        {**trace, "hovertemplate": f"{trace['name']}: %{{y:.1%}}<extra></extra>"}
        for trace in traces
    ]


def _by_peak(loads: Thinned) -> list[int]:
    peaks = np.fmax.reduce(loads.load, axis=0)
    return [int(row) for row in np.argsort(-np.nan_to_num(peaks), kind="stable")]


def _rows(timeline: Timeline, loads: Thinned) -> dict[str, int]:
    """Return the brokers of the heat map and their rows: those with the highest peaks."""
    return {name_of(timeline.brokers[row]): row for row in sorted(_by_peak(loads)[:ROWS])}


def _heat(rows: Mapping[str, int], loads: Thinned, axis: TimeAxis) -> Mapping[str, Json]:
    every = max(1, -(-len(rows) * len(loads.time_s) // CELLS))
    columns = np.fmax.reduceat(
        loads.load[:, list(rows.values())], np.arange(0, len(loads.time_s), every), axis=0
    )
    return {
        "type": "heatmap",
        "name": "every broker",
        "x": numbers(axis.shown(loads.time_s[::every])),
        "y": list(rows),
        "z": [numbers(column, 2) for column in columns.T],
        "yaxis": "y2",
        "zmin": 0,
        "zmax": 1.25,
        "colorscale": [list(stop) for stop in _HEAT],
        "colorbar": {"tickformat": ".0%", "len": 0.36, "y": 0.33, "thickness": 12},
        "hovertemplate": f"%{{y}}: %{{z:.0%}}<br>%{{x}} {axis.unit}<extra></extra>",
    }


def _bound(loads: Thinned, axis: TimeAxis) -> Mapping[str, Json]:
    return {
        **axis.line(loads.time_s, loads.bound, "lower bound"),
        **_BEHIND_MARKS,
        "line": {"color": BOUND_HUE, "width": 1.5, "dash": "dash"},
        "hovertemplate": "no assignment has a highest load below %{y:.1%}<extra></extra>",
    }


def _height(loads: Thinned) -> float:
    peaks = loads.load[np.isfinite(loads.load)]
    return 1.05 * max(1.0, float(peaks.max()) if peaks.size else 1.0)


def _layout(
    run: Run, axis: TimeAxis, events: list[Mapping[str, Json]], *, many: bool
) -> Mapping[str, Json]:
    full: Mapping[str, Json] = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1,
        "line": {"color": "#d62839", "width": 1},
    }  # fmt: skip
    warm_up: list[Mapping[str, Json]] = []
    if run.warm_up_s > 0:
        warm_up.append(axis.shaded(0.0, run.warm_up_s))
    return {
        "xaxis": {"title": {"text": axis.unit}, "range": axis.range, "anchor": "y3"},
        "yaxis": {
            "title": {"text": "load"},
            "tickformat": ".0%",
            "rangemode": "tozero",
            "domain": [0.56 if many else 0.24, 1],
        },
        "yaxis2": {
            "domain": [0.18, 0.5],
            "showticklabels": False,
            "ticks": "",
            "title": {"text": "brokers"},
        },
        "yaxis3": {"domain": [0, 0.12 if many else 0.16], "title": {"text": "moves"}, "nticks": 4},
        "shapes": [full, *warm_up, *events],
        "hovermode": "closest",
        "barmode": "stack",
        "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "traceorder": "normal"},
    }


def _in_words(run: Run, loads: Thinned, axis: TimeAxis) -> str:
    peaks = np.nan_to_num(loads.load)
    place, row = np.unravel_index(int(peaks.argmax()), peaks.shape)
    broker = run.timeline.brokers[int(row)].rpartition(":")[0]
    last = loads.highest[-1]
    end = f"{last:.0%}" if np.isfinite(last) else "no broker"
    thin = f" Each point is the highest of {loads.every} moments." if loads.every > 1 else ""
    few = len(run.timeline.brokers) > ROWS
    left = f" The {ROWS} brokers with the highest peaks have a row of colours." if few else ""
    return (
        f"Brokers: {len(run.timeline.brokers)}, moves: {len(run.moves)}. "
        f"Highest load {peaks[place, row]:.0%} on {broker} at "
        f"{axis.at(float(loads.time_s[int(place)]))}, {end} at the end; "
        f"the lower bound at the end is {loads.bound[-1]:.0%}.{thin}{left}"
    )
