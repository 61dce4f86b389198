"""Measures of each round of each combination."""

from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, Final

import numpy as np

from loadmanager.core.plan import Cause
from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.latest_reports import CONNECTIONS, TOPICS

RETURN_S: Final = 3600.0
"""A bundle that returns to a former owner within this time was moved in vain."""

FOR_LOAD: Final = frozenset({Cause.OVERLOADED, Cause.UNDERLOADED, Cause.IMBALANCE, Cause.SWAP})
"""Causes of moves for load."""


def _value(meaning: str, default: Any = MISSING) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(slots=True, kw_only=True)
class Line:
    """One round of one combination: a row of the table ``replay_rounds``.

    Its fields describe themselves. Loads are fractions of capacity, and stand until the next
    round. While a combination is ``settling``, they still result from the initial owners.
    ``refused`` is a key of `refusals.REFUSALS`. The last three are of the recorded rounds alone:
    see `recorded_rounds`.
    """

    combination: int = _value("Number of the combination, -1 for the recorded.")
    at_ms: int = _value("When the round was decided.")
    weight_s: float = _value("Until the next round, seconds.")
    refused: str = _value("Why it could not be replayed, empty if it was.", "")
    settling: bool = _value("Whether it is too early to be scored.", default=False)
    deviation: float = _value("Standard deviation of the loads over their mean.", 0.0)
    max_over_mean: float = _value("Largest load over the mean.", 0.0)
    largest: float = _value("Largest load, a fraction.", 0.0)
    overload_broker_s: float = _value("Overloaded brokers times seconds.", 0.0)
    broker_s: float = _value("Brokers times seconds.", 0.0)
    bytes_per_s: float = _value("Traffic of the cluster.", 0.0)
    away: float = _value("Fraction of it on other brokers than recorded.", 0.0)
    moves: int = _value("Bundles moved for load.", 0)
    placed: int = _value("Bundles placed that had no owner.", 0)
    drained: int = _value("Bundles taken off draining brokers.", 0)
    returned: int = _value("Moves back within an hour.", 0)
    moved_bytes_per_s: float = _value("Traffic of the moved bundles.", 0.0)
    returned_bytes_per_s: float = _value("Traffic of those that came back.", 0.0)
    moved_topics: int = _value("Topics of the moved bundles.", 0)
    moved_connections: int = _value("Producers and consumers of them.", 0)
    reproduced: bool | None = _value("Of the recorded: decided again the same.", None)
    note: str = _value("What was decided otherwise, or what was missing.", "")
    errors: Sequence[float] | None = _value(
        "Errors of the loads predicted in the recorded rounds.", None
    )


def measure(line: Line, loads: FloatArray, overload: float) -> None:
    """Set the measures of ``loads`` in ``line``; brokers above ``overload`` are overloaded."""
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
    """A move: the row of the bundle, and the numbers of brokers; ``source`` is -1 for none."""

    row: int
    source: int
    target: int
    cause: Cause


@dataclass(slots=True)
class Ledger:
    """Counts the moves of one combination, and those that returned a bundle."""

    _left_s: dict[int, dict[int, float]] = field(default_factory=dict)

    def count(self, line: Line, frame: Frame, moves: Iterable[Moved]) -> None:
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
