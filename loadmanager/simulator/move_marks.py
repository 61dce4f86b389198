"""The moves of a run in its picture: the largest as marks that say why, all as bars."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.charts import Json, numbers, shown
from loadmanager.core.plan import Cause
from loadmanager.simulator.run import MoveRecord, Run, Why
from loadmanager.simulator.time_axis import TimeAxis

MARKS: Final = 300
"""At most so many moves are marked, those with the most traffic; the bars count all."""

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
}


@dataclass(frozen=True, slots=True)
class Marks:
    """Marks of moves, one trace for each reason, and what they leave out, in words."""

    traces: Sequence[Mapping[str, Json]]
    note: str = ""


def move_marks(run: Run, axis: TimeAxis) -> Marks:
    """Return a mark at the load of the broker a bundle came from, or went to from nobody."""
    largest = sorted(run.moves, key=lambda move: (-move.bytes_per_s, move.at_s, move.bundle))
    marked = sorted(largest[:MARKS], key=lambda move: (move.at_s, move.bundle))
    kinds = sorted({(move.why, move.cause) for move in marked})
    left = len(run.moves) - len(marked)
    note = f"Marks are the {MARKS} moves with the most traffic; the bars count all." if left else ""
    return Marks([_marks(run, axis, marked, *kind) for kind in kinds], note)


def _marks(
    run: Run, axis: TimeAxis, moves: Sequence[MoveRecord], why: Why, cause: Cause
) -> Mapping[str, Json]:
    mine = [move for move in moves if (move.why, move.cause) == (why, cause)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": f"{why.value}: {cause.value}",
        "x": numbers(axis.shown(np.array([move.at_s for move in mine]))),
        "y": numbers(_loads(run, mine)),
        "text": [_in_words(move, axis) for move in mine],
        "marker": {
            "symbol": _SYMBOLS[why],
            "color": _HUES[cause],
            "size": 8 if len(mine) <= _FEW else 5,
            "opacity": 0.85,
            "line": {"width": 1 if len(mine) <= _FEW else 0, "color": "#ffffff"},
        },
        "hovertemplate": "%{text}<extra></extra>",
    }


def _loads(run: Run, moves: Sequence[MoveRecord]) -> list[float]:
    """Return the load that the broker of each move had at the recorded moment before it."""
    timeline = run.timeline
    rows = {broker: row for row, broker in enumerate(timeline.brokers)}
    times = np.searchsorted(timeline.time_s, [move.at_s for move in moves], side="right") - 1
    brokers = [rows[move.target if move.source is None else move.source] for move in moves]
    loads = timeline.demand[np.maximum(times, 0), brokers]
    # A broker that crashed has no load any more.
    return [float(load) if np.isfinite(load) else 0.0 for load in loads.max(axis=1)]


def _in_words(move: MoveRecord, axis: TimeAxis) -> str:
    return "<br>".join(
        (
            f"<b>{shown(move.bundle)}</b>",
            f"from {shown(move.source or 'nobody')} to {shown(move.target)}",
            f"{move.why.value}: {move.cause.value}, at {axis.at(move.at_s)}",
            f"{move.msgs_per_s:,.0f} messages/s, {move.bytes_per_s / 1e6:,.2f} MB/s",
            f"clients interrupted: {move.interrupted_client_s:,.1f} client-seconds",
        )
    )


def move_bars(run: Run, axis: TimeAxis) -> Mapping[str, Json]:
    """Return how many moves there were in each interval, all of them."""
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
