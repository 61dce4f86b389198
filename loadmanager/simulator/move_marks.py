"""The moves of a run in its chart: marks with bundle and reason, and bars with counts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.charts import Json, numbers, shown
from loadmanager.core.ids import BrokerId
from loadmanager.core.plan import Cause
from loadmanager.simulator.run import MoveRecord, Run, Why
from loadmanager.simulator.time_axis import TimeAxis

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
