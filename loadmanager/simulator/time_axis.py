"""The time axis of pictures: unit by the duration of the run, events as vertical lines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.charts import Json, numbers, shown

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
