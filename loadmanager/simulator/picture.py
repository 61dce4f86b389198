"""The picture of one run in a report: its chart, and the loads for comparison of strategies.

It is small enough to be sent between processes: a run of a day with 1,000 brokers has millions of
numbers, its picture some ten thousand.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.charts import Chart, Html, Json, joined, numbers, shown, tag
from loadmanager.core.ids import BrokerId
from loadmanager.core.plan import Cause
from loadmanager.simulator.results import MoveRecord, Run, Timeline, Why

POINTS: Final = 240
"""The most points of a series; each stands for one interval."""

EVENTS: Final = 60
"""The most times of events with a line; all events are shown on hover."""

MARKS: Final = 300
"""The most marks in a chart: those with the most traffic. The bars count all moves."""

LISTED: Final = 5
"""The most moves listed in a mark, which moves of one time, broker and reason share."""

BARS: Final = 80

LINES: Final = 12
"""The most brokers with one line each; of more the highest load and a heat map are shown."""

ROWS: Final = 200
"""The most rows of the heat map: brokers with the highest peaks."""

CELLS: Final = 24_000
"""The most cells of the heat map: a column may combine several intervals."""

HUES: Final = (
    "#3b82d6", "#e07b27", "#2f9e63", "#d0505a", "#8f6bd1", "#a0714f",
    "#d769b0", "#7d8793", "#a9a527", "#21a6b8", "#5f6fd8", "#c2457a",
)  # fmt: skip
_GREY: Final = "#7d8793"
_SYMBOLS: Final = {Why.SHED: "circle", Why.PLACED: "square", Why.DRAINED: "diamond"}
_CAUSE_HUES: Final = {
    Cause.OVERLOADED: "#d0505a",
    Cause.UNDERLOADED: "#3b82d6",
    Cause.IMBALANCE: "#8f6bd1",
    Cause.SWAP: "#2f9e63",
    Cause.DRAINING: "#e07b27",
    Cause.UNOWNED: _GREY,
    Cause.REQUESTED: "#a0714f",
    Cause.OVERSIZED: "#c79a1e",
    Cause.INHERITED: "#5b6b7b",
}
_HEAT: Final = ((0.0, "#123a63"), (0.45, "#2a9d8f"), (0.8, "#f4c95d"), (1.0, "#d62839"))
_IN_MINUTES_UP_TO_S: Final = 3 * 3600.0

# On hover plotly.js prefers the smallest point: with large invisible points on a line, the marks of
# moves on it take precedence.
_BEHIND_MARKS: Final[Mapping[str, Json]] = {
    "mode": "lines+markers",
    "marker": {"size": 24, "opacity": 0},
}

Trace = Mapping[str, Json]

LOAD_AXIS: Final[Trace] = {
    "title": {"text": "load"},
    "tickformat": ".0%",
    "rangemode": "tozero",
}


@dataclass(frozen=True, slots=True)
class TimeAxis:
    unit: str
    unit_s: float
    duration_s: float

    @classmethod
    def of(cls, duration_s: float) -> "TimeAxis":
        if duration_s <= _IN_MINUTES_UP_TO_S:
            return cls("minutes", 60.0, duration_s)
        return cls("hours", 3600.0, duration_s)

    @property
    def layout(self) -> Mapping[str, Json]:
        return {"title": {"text": self.unit}, "range": [0.0, self.duration_s / self.unit_s]}

    def shown(self, time_s: Sequence[float] | NDArray[np.float64]) -> list[float | None]:
        return numbers(np.asarray(time_s, dtype=np.float64) / self.unit_s)

    def at(self, time_s: float) -> str:
        """Return a time as text: ``minute 5.2``."""
        return f"{self.unit.removesuffix('s')} {time_s / self.unit_s:.3g}"


@dataclass(frozen=True, eq=False, slots=True)
class Thinned:
    """The loads of N intervals and B brokers: the highest of each interval.

    A broker's load is its demand on its scarcest resource, as a fraction of capacity; NaN
    while it is absent. ``bound`` is the highest lower bound of an interval. ``time_s`` is
    the beginning of each interval, ``every`` the number of its recorded moments.
    """

    time_s: NDArray[np.float64]
    load: NDArray[np.float64]
    bound: NDArray[np.float64]
    every: int

    @property
    def highest(self) -> NDArray[np.float64]:
        """The load of the most loaded broker of each interval; NaN without any broker."""
        return np.asarray(np.fmax.reduce(self.load, axis=1), dtype=np.float64)


def thinned(timeline: Timeline, points: int = POINTS) -> Thinned:
    every = max(1, -(-len(timeline.time_s) // points))
    begins = np.arange(0, len(timeline.time_s), every)
    load = np.fmax.reduce(timeline.demand.astype(np.float64), axis=2)
    return Thinned(
        time_s=np.asarray(timeline.time_s[begins], dtype=np.float64),
        load=np.asarray(np.fmax.reduceat(load, begins, axis=0)),
        bound=np.asarray(np.fmax.reduceat(timeline.bound.astype(np.float64), begins)),
        every=every,
    )


def picture_of(run: Run) -> Html:
    loads = thinned(run.timeline)
    axis = TimeAxis.of(run.duration_s)
    refused = sorted(run.refusals.items(), key=lambda one: (-one[1], one[0]))
    text = ", ".join(f"{reason.replace('_', ' ')} {count:,}" for reason, count in refused)
    rounds = f"The leader did {run.rounds:,} rounds. Refusals: {text or 'none'}."
    return joined((chart_of(run, loads, axis).html(), tag("p", rounds)))


def line(
    name: str,
    time: Sequence[float | None],
    loads: Sequence[float | None],
    style: Mapping[str, Json],
    hover: str = "",
) -> Trace:
    name = shown(name)
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": time,
        "y": loads,
        "line": style,
        "hovertemplate": (hover or f"{name}: %{{y:.1%}}") + "<extra></extra>",
    }


def name_of(broker: BrokerId) -> str:
    return shown(broker.rpartition(":")[0])


def chart_of(run: Run, loads: Thinned, axis: TimeAxis) -> Chart:
    brokers = [name_of(broker) for broker in run.timeline.brokers]
    many = len(brokers) > LINES
    time = axis.shown(loads.time_s)
    rows: dict[str, int] = {}
    traces: list[Trace]
    if many:
        peaks = np.nan_to_num(np.fmax.reduce(loads.load, axis=0))
        rows = {brokers[row]: row for row in sorted(np.argsort(-peaks, kind="stable")[:ROWS])}
        style: Mapping[str, Json] = {"color": HUES[3], "width": 2}
        traces = [line("highest", time, numbers(loads.highest), style)]
    else:
        styles: list[Trace] = [{"color": hue, "width": 1.6} for hue in HUES]
        traces = [
            {**line(name, time, numbers(load), style), **_BEHIND_MARKS}
            for name, load, style in zip(brokers, loads.load.T, styles, strict=False)
        ]
    marks, left = _move_marks(run, axis, rows)
    bound: Trace = {"color": "#d6336c", "width": 1.5, "dash": "dash"}
    hover = "no assignment has a highest load below %{y:.1%}"
    # plotly.js orders the rows as in the first trace that has them.
    traces += [
        {**line("lower bound", time, numbers(loads.bound), bound, hover), **_BEHIND_MARKS},
        *([_heat(rows, loads, axis)] if many else []),
        *marks,
        _move_bars(run, axis),
    ]
    known = loads.load[np.isfinite(loads.load)]
    happened, lines = _events(run, axis, 1.05 * float(known.max(initial=1.0)))
    full: Trace = {
        "type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": 1, "y1": 1,
        "line": {"color": "#d62839", "width": 1},
    }  # fmt: skip
    warm_up: Trace = {
        "type": "rect", "layer": "below", "yref": "paper", "y0": 0, "y1": 1,
        "x0": 0.0, "x1": run.warm_up_s / axis.unit_s,
        "fillcolor": "rgba(128,128,128,0.12)", "line": {"width": 0},
    }  # fmt: skip
    return Chart(
        title="Load of the brokers",
        summary=_summary(run, loads, axis) + left,
        data=[*traces, *happened],
        layout={
            "xaxis": {**axis.layout, "anchor": "y3"},
            "yaxis": {**LOAD_AXIS, "domain": [0.56 if many else 0.24, 1]},
            "yaxis2": {
                "domain": [0.18, 0.5],
                "showticklabels": False,
                "ticks": "",
                "title": {"text": "brokers"},
            },
            "yaxis3": {
                "domain": [0, 0.12 if many else 0.16],
                "title": {"text": "moves"},
                "nticks": 4,
            },
            "shapes": [full, *([warm_up] if run.warm_up_s > 0 else []), *lines],
            "hovermode": "closest",
            "barmode": "stack",
            "legend": {"orientation": "h", "yanchor": "bottom", "y": 1.02, "traceorder": "normal"},
        },
        height_px=780 if many else 520,
    )


def _heat(rows: Mapping[str, int], loads: Thinned, axis: TimeAxis) -> Trace:
    every = max(1, -(-len(rows) * len(loads.time_s) // CELLS))
    columns = np.fmax.reduceat(
        loads.load[:, list(rows.values())], np.arange(0, len(loads.time_s), every), axis=0
    )
    return {
        "type": "heatmap",
        "name": "every broker",
        "x": axis.shown(loads.time_s[::every]),
        "y": list(rows),
        "z": [numbers(column, 2) for column in columns.T],
        "yaxis": "y2",
        "zmin": 0,
        "zmax": 1.25,
        "colorscale": [list(stop) for stop in _HEAT],
        "colorbar": {"tickformat": ".0%", "len": 0.36, "y": 0.33, "thickness": 12},
        "hovertemplate": f"%{{y}}: %{{z:.0%}}<br>%{{x}} {axis.unit}<extra></extra>",
    }


def _move_marks(run: Run, axis: TimeAxis, rows: Mapping[str, int]) -> tuple[list[Trace], str]:
    """Return marks at the brokers that bundles left, or that unowned bundles went to, and a note.

    They are at the load of the broker, or in its row if there are ``rows``.
    """
    moves: defaultdict[tuple[float, BrokerId, Why, Cause], list[MoveRecord]] = defaultdict(list)
    for move in sorted(run.moves, key=lambda move: (-move.bytes_per_s, move.bundle)):
        moves[move.at_s, move.source or move.target, move.why, move.cause].append(move)
    found = [key for key in moves if not rows or name_of(key[1]) in rows]
    found.sort(key=lambda key: (-sum(move.bytes_per_s for move in moves[key]), key))
    found = sorted(found[:MARKS])
    left = len(run.moves) - sum(len(moves[key]) for key in found)
    note = f" {left} moves with less traffic have no mark; the bars count all." if left else ""
    places = {broker: row for row, broker in enumerate(run.timeline.brokers)}

    def height(at_s: float, broker: BrokerId) -> float:
        """Return the load at the recorded moment before; a crashed broker has none."""
        moment = max(int(np.searchsorted(run.timeline.time_s, at_s, side="right")) - 1, 0)
        load = float(run.timeline.demand[moment, places[broker]].max())
        return round(load, 3) if np.isfinite(load) else 0.0

    traces: list[Trace] = []
    for why, cause in sorted({key[2:] for key in found}):
        keys = [key for key in found if key[2:] == (why, cause)]
        heights: list[float] | list[str] = [height(at_s, broker) for at_s, broker, _, _ in keys]
        traces.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": f"{why.value}: {cause.value}",
                "x": axis.shown([key[0] for key in keys]),
                "y": [name_of(key[1]) for key in keys] if rows else heights,
                "yaxis": "y2" if rows else "y",
                "text": [_in_words(moves[key], axis) for key in keys],
                "marker": {
                    "symbol": _SYMBOLS[why],
                    "color": _CAUSE_HUES[cause],
                    "size": [min(6 + len(moves[key]), 14) for key in keys],
                    "opacity": 0.85,
                    "line": {"width": 0.5, "color": "#ffffff"},
                },
                "hovertemplate": "%{text}<extra></extra>",
            }
        )
    return traces, note


def _in_words(moves: Sequence[MoveRecord], axis: TimeAxis) -> str:
    count = f", {len(moves)} bundles" if len(moves) > 1 else ""
    lines = [
        f"<b>{moves[0].why.value}: {moves[0].cause.value}</b>, {axis.at(moves[0].at_s)}{count}"
    ]
    for move in moves[:LISTED]:
        source = "no broker" if move.source is None else name_of(move.source)
        lines += [
            f"{shown(move.bundle)} from {source} to {name_of(move.target)}",
            (
                f"    {move.msgs_per_s:,.0f} messages/s, {move.bytes_per_s / 1e6:,.2f} MB/s, "
                f"clients waited {move.interrupted_client_s:,.1f} s in all"
            ),
        ]
    if len(moves) > LISTED:
        lines.append(f"and {len(moves) - LISTED} with less traffic")
    return "<br>".join(lines)


def _move_bars(run: Run, axis: TimeAxis) -> Trace:
    edges_s = np.linspace(0.0, run.duration_s, BARS + 1)
    counts, _ = np.histogram([move.at_s for move in run.moves], bins=edges_s)
    return {
        "type": "bar",
        "name": "moves",
        "x": axis.shown((edges_s[:-1] + edges_s[1:]) / 2),
        "y": counts.tolist(),
        "yaxis": "y3",
        "showlegend": False,
        "marker": {"color": _GREY},
        "hovertemplate": f"%{{y}} moves around %{{x:.4g}} {axis.unit}<extra></extra>",
    }


def _events(run: Run, axis: TimeAxis, height: float) -> tuple[list[Trace], list[Trace]]:
    """Return marks of events at ``height``, with texts on hover, and vertical lines."""
    texts: dict[float, list[str]] = {}
    for at_s, text in run.happened:
        texts.setdefault(at_s, []).append(shown(text))
    places = axis.shown(list(texts))
    marks: Trace = {
        "type": "scatter",
        "mode": "markers",
        "name": "events",
        "x": places,
        "y": [round(height, 3)] * len(texts),
        "text": ["<br>".join(lines) for lines in texts.values()],
        "marker": {"symbol": "triangle-down", "size": 10, "color": _GREY},
        "hovertemplate": f"%{{x}} {axis.unit}: %{{text}}<extra></extra>",
    }
    lines: list[Trace] = [
        {
            "type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": place, "x1": place,
            "line": {"color": _GREY, "width": 1, "dash": "dot"},
        }
        for place in places[:EVENTS]
    ]  # fmt: skip
    return [marks] * bool(texts), lines


def _summary(run: Run, loads: Thinned, axis: TimeAxis) -> str:
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
