"""The picture of one run in a report: its chart, and the loads for comparison of strategies.

It is small enough to be sent between processes: a run of a day with 1,000 brokers has millions of
numbers, its picture some ten thousand.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.charts import Chart, Html, Json, joined, numbers, shown, tag
from loadmanager.core.ids import BrokerId
from loadmanager.core.plan import Cause
from loadmanager.simulator.results import RESOURCES, MoveRecord, Run, Timeline, Why

_IN_MINUTES_UP_TO_S: Final = 3 * 3600.0

EVENTS: Final = 60
"""The most times of events with a line; all events are shown on hover."""


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
    def range(self) -> list[float]:
        return [0.0, self.duration_s / self.unit_s]

    def shown(self, time_s: float | NDArray[np.float64]) -> NDArray[np.float64]:
        return np.asarray(time_s, dtype=np.float64) / self.unit_s

    def at(self, time_s: float) -> str:
        """Return a time as text: ``minute 5.2``."""
        return f"{self.unit.removesuffix('s')} {time_s / self.unit_s:.3g}"

    def line(
        self, time_s: NDArray[np.float64], values: NDArray[np.float64], name: str
    ) -> Mapping[str, Json]:
        return {
            "type": "scatter",
            "mode": "lines",
            "name": name,
            "x": numbers(self.shown(time_s)),
            "y": numbers(values),
        }

    def shaded(self, from_s: float, until_s: float) -> Mapping[str, Json]:
        return {
            "type": "rect", "layer": "below", "yref": "paper", "y0": 0, "y1": 1,
            "x0": from_s / self.unit_s, "x1": until_s / self.unit_s,
            "fillcolor": "rgba(128,128,128,0.12)", "line": {"width": 0},
        }  # fmt: skip

    def events(
        self, happened: Sequence[tuple[float, str]], height: float
    ) -> tuple[list[Mapping[str, Json]], list[Mapping[str, Json]]]:
        """Return marks of events at ``height``, with texts on hover, and vertical lines."""
        texts: dict[float, list[str]] = {}
        for at_s, text in happened:
            texts.setdefault(at_s, []).append(shown(text))
        if not texts:
            return [], []
        places = numbers(self.shown(np.array(list(texts))))
        marks: Mapping[str, Json] = {
            "type": "scatter",
            "mode": "markers",
            "name": "events",
            "x": places,
            "y": [round(height, 3)] * len(texts),
            "text": ["<br>".join(lines) for lines in texts.values()],
            "marker": {"symbol": "triangle-down", "size": 10, "color": "#7d8793"},
            "hovertemplate": f"%{{x}} {self.unit}: %{{text}}<extra></extra>",
        }
        lines: list[Mapping[str, Json]] = [
            {
                "type": "line", "yref": "paper", "y0": 0, "y1": 1, "x0": place, "x1": place,
                "line": {"color": "#7d8793", "width": 1, "dash": "dot"},
            }
            for place in places[:EVENTS]
        ]  # fmt: skip
        return [marks], lines


POINTS: Final = 240
"""The most points of a series; each stands for one interval."""


@dataclass(frozen=True, eq=False, slots=True)
class Thinned:
    """The loads of N intervals and B brokers: the highest of each interval.

    A broker's load is its demand on its scarcest resource, as a fraction of capacity; NaN
    while it is absent. ``resource`` (N, B) is that resource, as an index of
    `run.RESOURCES`. ``bound`` is the highest lower bound of an interval. ``time_s`` is
    the beginning of each interval, ``every`` the number of its recorded moments.
    """

    time_s: NDArray[np.float64]
    load: NDArray[np.float64]
    resource: NDArray[np.int64]
    bound: NDArray[np.float64]
    every: int

    @property
    def highest(self) -> NDArray[np.float64]:
        """The load of the most loaded broker of each interval; NaN without any broker."""
        return np.asarray(np.fmax.reduce(self.load, axis=1), dtype=np.float64)

    def percentile(self, fraction: float) -> NDArray[np.float64]:
        """Return the load that ``fraction`` of the present brokers do not exceed, by interval.

        It is the load of one broker, without interpolation; NaN without brokers.
        """
        ordered = np.sort(self.load, axis=1)  # NaN comes last
        there = np.isfinite(ordered).sum(axis=1)
        place = np.rint(fraction * np.maximum(there - 1, 0)).astype(np.int64)
        return np.asarray(np.take_along_axis(ordered, place[:, None], axis=1)[:, 0])


def thinned(timeline: Timeline, points: int = POINTS) -> Thinned:
    every = max(1, -(-len(timeline.time_s) // points))
    demand = np.asarray(timeline.demand, dtype=np.float64)
    known = np.where(np.isfinite(demand), demand, -np.inf)
    load = known.max(axis=2)
    load[~np.isfinite(load)] = np.nan
    folded = _intervals(load, every)
    moment = np.where(np.isfinite(folded), folded, -np.inf).argmax(axis=1)
    resources = _intervals(known.argmax(axis=2).astype(np.float64), every)
    return Thinned(
        time_s=np.asarray(timeline.time_s[::every], dtype=np.float64),
        load=np.take_along_axis(folded, moment[:, None], axis=1)[:, 0],
        resource=np.take_along_axis(resources, moment[:, None], axis=1)[:, 0].astype(np.int64),
        bound=np.fmax.reduce(_intervals(timeline.bound[:, None], every), axis=1)[:, 0],
        every=every,
    )


def _intervals(values: NDArray[np.floating], every: int) -> NDArray[np.float64]:
    """Return ``values`` (T, B) as (N, every, B); the last interval is padded with NaN."""
    missing = -len(values) % every
    filled = np.pad(
        np.asarray(values, dtype=np.float64), ((0, missing), (0, 0)), constant_values=np.nan
    )
    return filled.reshape(-1, every, values.shape[1])


MARKS: Final = 300
"""The most marks in a chart: those with the most traffic. The bars count all moves."""

LISTED: Final = 5
"""The most moves listed in a mark, which moves of one time, broker and reason share."""

BARS: Final = 80

_FEW: Final = 60
_SYMBOLS: Final = {Why.SHED: "circle", Why.PLACED: "square", Why.DRAINED: "diamond"}
_HUES: Final = {
    Cause.OVERLOADED: "#d0505a",
    Cause.UNDERLOADED: "#3b82d6",
    Cause.IMBALANCE: "#8f6bd1",
    Cause.SWAP: "#2f9e63",
    Cause.DRAINING: "#e07b27",
    Cause.UNOWNED: "#7d8793",
    Cause.REQUESTED: "#a0714f",
    Cause.OVERSIZED: "#c79a1e",
    Cause.INHERITED: "#5b6b7b",
}


@dataclass(frozen=True, slots=True)
class Marks:
    """Traces of marks, one for each reason, and a note on moves without a mark."""

    traces: Sequence[Mapping[str, Json]]
    note: str = ""


@dataclass(frozen=True, slots=True)
class _Mark:
    at_s: float
    broker: BrokerId
    why: Why
    cause: Cause
    moves: tuple[MoveRecord, ...]

    @property
    def bytes_per_s(self) -> float:
        return sum(move.bytes_per_s for move in self.moves)


def name_of(broker: BrokerId) -> str:
    return shown(broker.rpartition(":")[0])


def move_marks(run: Run, axis: TimeAxis, rows: Iterable[str] | None = None) -> Marks:
    """Return marks at the brokers that bundles left, or that unowned bundles went to.

    They are at the load of the broker, or in its row if ``rows`` are given.
    """
    places = None if rows is None else frozenset(rows)
    found = [one for one in _grouped(run.moves) if places is None or name_of(one.broker) in places]
    largest = sorted(found, key=lambda one: (-one.bytes_per_s, one.at_s, one.broker))
    marked = sorted(largest[:MARKS], key=lambda one: (one.at_s, one.broker))
    kinds = sorted({(one.why, one.cause) for one in marked})
    left = len(run.moves) - sum(len(one.moves) for one in marked)
    note = f"{left} moves with less traffic have no mark; the bars count all." if left else ""
    return Marks(
        [
            _trace(run, axis, [one for one in marked if (one.why, one.cause) == kind], places)
            for kind in kinds
        ],
        note,
    )


def _grouped(moves: Iterable[MoveRecord]) -> list[_Mark]:
    groups: dict[tuple[float, BrokerId, Why, Cause], list[MoveRecord]] = {}
    for move in moves:
        broker = move.target if move.source is None else move.source
        groups.setdefault((move.at_s, broker, move.why, move.cause), []).append(move)
    return [
        _Mark(*key, tuple(sorted(group, key=lambda move: (-move.bytes_per_s, move.bundle))))
        for key, group in groups.items()
    ]


def _trace(
    run: Run, axis: TimeAxis, marks: Sequence[_Mark], rows: frozenset[str] | None
) -> Mapping[str, Json]:
    few = len(marks) <= _FEW
    why, cause = marks[0].why, marks[0].cause
    heights: list[float] | list[str] = (
        _loads(run, marks) if rows is None else [name_of(one.broker) for one in marks]
    )
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{why.value}: {cause.value}",
        "x": numbers(axis.shown(np.array([one.at_s for one in marks]))),
        "y": heights,
        "yaxis": "y" if rows is None else "y2",
        "text": [_in_words(one, axis) for one in marks],
        "marker": {
            "symbol": _SYMBOLS[why],
            "color": _HUES[cause],
            "size": [min(5 + 3 * few + len(one.moves), 14) for one in marks],
            "opacity": 0.85,
            "line": {"width": 1 if few else 0.5, "color": "#ffffff"},
        },
        "hovertemplate": "%{text}<extra></extra>",
    }


def _loads(run: Run, marks: Sequence[_Mark]) -> list[float]:
    """Return the load of the broker of each mark at the recorded moment before it."""
    timeline = run.timeline
    rows = {broker: row for row, broker in enumerate(timeline.brokers)}
    times = np.searchsorted(timeline.time_s, [one.at_s for one in marks], side="right") - 1
    loads = timeline.demand[np.maximum(times, 0), [rows[one.broker] for one in marks]]
    # A crashed broker has no load.
    return [round(float(load), 3) if np.isfinite(load) else 0.0 for load in loads.max(axis=1)]


def _in_words(mark: _Mark, axis: TimeAxis) -> str:
    count = f", {len(mark.moves)} bundles" if len(mark.moves) > 1 else ""
    lines = [f"<b>{mark.why.value}: {mark.cause.value}</b>, {axis.at(mark.at_s)}{count}"]
    lines += [_move(move) for move in mark.moves[:LISTED]]
    if len(mark.moves) > LISTED:
        lines.append(f"and {len(mark.moves) - LISTED} with less traffic")
    return "<br>".join(lines)


def _move(move: MoveRecord) -> str:
    source = "no broker" if move.source is None else name_of(move.source)
    return (
        f"{shown(move.bundle)} from {source} to {name_of(move.target)}<br>"
        f"    {move.msgs_per_s:,.0f} messages/s, {move.bytes_per_s / 1e6:,.2f} MB/s, "
        f"clients waited {move.interrupted_client_s:,.1f} s in all"
    )


def move_bars(run: Run, axis: TimeAxis) -> Mapping[str, Json]:
    edges_s = np.linspace(0.0, run.duration_s, BARS + 1)
    counts, _ = np.histogram([move.at_s for move in run.moves], bins=edges_s)
    return {
        "type": "bar",
        "name": "moves",
        "x": numbers(axis.shown((edges_s[:-1] + edges_s[1:]) / 2)),
        "y": counts.tolist(),
        "yaxis": "y3",
        "showlegend": False,
        "marker": {"color": "#7d8793"},
        "hovertemplate": f"%{{y}} moves around %{{x:.4g}} {axis.unit}<extra></extra>",
    }


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
        summary=f"{_summary(run, loads, axis)} {marks.note}".strip(),
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
            "text": [
                RESOURCES[place].replace("_", " ") for place in loads.resource[:, row].tolist()
            ],
            "hovertemplate": f"{name_of(broker)}: %{{y:.1%}} (%{{text}})<extra></extra>",
        }
        for row, broker in enumerate(timeline.brokers)
    ]


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
