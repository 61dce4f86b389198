"""What is measured of each round of each combination."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from loadmanager.core.plan import Cause
from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.latest_reports import CONNECTIONS, TOPICS

RETURN_S: Final = 3600.0
"""A bundle that is back at a former owner so soon was moved for nothing."""

FOR_LOAD: Final = frozenset({Cause.OVERLOADED, Cause.UNDERLOADED, Cause.IMBALANCE, Cause.SWAP})
"""Causes of moves that no client requests."""


@dataclass(slots=True, kw_only=True)
class Line:
    """One round of one combination.

    ``combination`` is its number, -1 for what was recorded. ``weight_s`` is the time until
    the next round, for which the loads at this one stand. Loads are fractions:
    ``deviation`` and ``max_over_mean`` of them over the brokers' mean.
    ``overload_broker_s`` is for how long brokers were above the threshold, added up, of
    ``broker_s`` in all. ``bytes_per_s`` is the cluster's traffic, ``away`` the fraction of
    it that is on other brokers than recorded. ``moves`` are for load; ``returned`` of them
    took a bundle back within `RETURN_S`. What moved is given as traffic, topics and
    connections. While it is ``settling``, the loads are still those of where the bundles began,
    and are not scored. ``refused`` is a word of `refusals.REFUSALS`, or empty.

    Of what was recorded alone: whether a base round was ``reproduced``, if not why
    (``note``), and ``errors`` of predicted loads: see `recorded_rounds`.
    """

    combination: int
    at_ms: int
    weight_s: float
    refused: str = ""
    settling: bool = False
    deviation: float = 0.0
    max_over_mean: float = 0.0
    largest: float = 0.0
    overload_broker_s: float = 0.0
    broker_s: float = 0.0
    bytes_per_s: float = 0.0
    away: float = 0.0
    moves: int = 0
    placed: int = 0
    drained: int = 0
    returned: int = 0
    moved_bytes_per_s: float = 0.0
    returned_bytes_per_s: float = 0.0
    moved_topics: int = 0
    moved_connections: int = 0
    reproduced: bool | None = None
    note: str = ""
    errors: list[float] | None = None

    def values(self) -> Mapping[str, Any]:
        """Return the fields by name."""
        return asdict(self)


def measure(line: Line, loads: FloatArray, overload: float) -> None:
    """Fill in how evenly ``loads`` lie; brokers above ``overload`` are overloaded."""
    if not len(loads):
        return
    mean = float(loads.mean())
    line.largest = float(loads.max())
    line.deviation = float(loads.std()) / mean if mean > 0 else 0.0
    line.max_over_mean = line.largest / mean if mean > 0 else 1.0
    line.overload_broker_s = float(np.count_nonzero(loads > overload)) * line.weight_s
    line.broker_s = len(loads) * line.weight_s


@dataclass(frozen=True, slots=True)
class Moved:
    """A bundle's move: its row, and the numbers of brokers; ``source`` -1 is for none."""

    row: int
    source: int
    target: int
    cause: Cause


@dataclass(slots=True)
class Ledger:
    """Counts the moves of one combination, and which of them were back and forth."""

    _left_s: dict[int, dict[int, float]] = field(default_factory=dict)

    def count(self, line: Line, frame: Frame, moves: Iterable[Moved]) -> None:
        """Count the moves of one round."""
        for move in moves:
            if move.source < 0:
                line.placed += 1
                continue
            left_s = self._left_s.setdefault(move.row, {})
            away_s = left_s.get(move.target)
            left_s[move.source] = frame.at_s
            if move.cause is Cause.DRAINING:
                line.drained += 1
            elif move.cause in FOR_LOAD:
                lately = away_s is not None and 0 <= frame.at_s - away_s <= RETURN_S
                self._moved(line, frame.rates[move.row], lately=lately)

    def _moved(self, line: Line, rates: FloatArray, *, lately: bool) -> None:
        bytes_per_s = float(rates[2:4].sum())
        line.moves += 1
        line.moved_bytes_per_s += bytes_per_s
        line.moved_topics += int(rates[TOPICS])
        line.moved_connections += int(rates[CONNECTIONS])
        if lately:
            line.returned += 1
            line.returned_bytes_per_s += bytes_per_s
