"""Measures of each round of each combination."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.plan import Cause
from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.replay.events import CONNECTIONS, TOPICS
from loadmanager.pipeline.replay.frames import Frame

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
    ``refused`` is a key of `frames.REFUSALS`. The last three are of the recorded rounds alone:
    see `segment_replay`.
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


Column = NDArray[Any]

P95_WEIGHT: Final = 0.5
OVERLOAD_WEIGHT: Final = 2.0
MOVED_WEIGHT: Final = 0.1
SETTLE_S: Final = 1800.0
"""How long a combination is not scored after its bundles were spread anew.

It is the default cool-down of a moved bundle: until then it did not choose most owners.
"""

STRETCH_S: Final = 600.0
"""The length of stretches in which combinations are compared: ten default rounds."""

SEGMENT_H: Final = 2.0
"""The length of segments. Each has its own initial owners, so that no start favours one."""

LEAST_HISTORY_S: Final = 2 * SEGMENT_H * 3600
"""Two starts: with one, the effect of the start itself would be unknown."""

LEAST_STRETCHES: Final = 8
"""Eight of eight better stretches occur by chance in 1 of 256 cases."""

LEAST_DECISIONS: Final = 20
"""Moves of the recorded leader: errors of predicted loads are only measured at these."""

LEAST_OWN_DECISIONS: Final = 5
"""Moves of a combination: with fewer it is judged by its initial owners."""

LEAST_GAIN: Final = 0.10
"""Relative gain: two replays of one strategy with random choices may differ by this."""

LEAST_BETTER: Final = 0.8
"""Fraction of better stretches; below it the gain depends on the hour."""


def _score(what: str) -> Any:
    return field(metadata={"what": what})


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The scores of a combination over all replayed rounds; less is better."""

    rounds: int = _score("Rounds scored: those replayed, less those while it settled.")
    covered_s: float = _score("How long they stood, seconds.")
    penalty: float = _score(
        f"What the order is by: (max_over_mean - 1) + {P95_WEIGHT} x (max_over_mean_p95 - 1) + "
        f"{OVERLOAD_WEIGHT} x overload_fraction + {MOVED_WEIGHT} x (moved_per_hour + "
        "returned_per_hour)."
    )
    deviation: float = _score("Standard deviation of the brokers' loads over their mean, mean.")
    deviation_p95: float = _score("The same, 95 % of the time at most.")
    max_over_mean: float = _score("Largest load over the mean load, mean over time; 1 is even.")
    max_over_mean_p95: float = _score("The same, 95 % of the time at most.")
    largest: float = _score("Largest load, a fraction, mean over time.")
    largest_p95: float = _score("The same, 95 % of the time at most.")
    overload_broker_s: float = _score("How long brokers were above the threshold, added up.")
    overload_fraction: float = _score("The same as a fraction of all brokers' time.")
    moves: int = _score("Bundles moved for load.")
    settling_moves: int = _score("The same while it settled, which nothing else counts.")
    placed: int = _score("Bundles placed that had no owner.")
    drained: int = _score("Bundles taken off draining brokers.")
    returned: int = _score("Moves that took a bundle back to where it was within the last hour.")
    moved_bytes_per_s: float = _score("Traffic of the bundles moved for load, added up.")
    moved_per_hour: float = _score("The same as a multiple of the cluster's traffic, each hour.")
    returned_per_hour: float = _score("How much of that went back within an hour.")
    moved_topics: int = _score("Topics whose clients had to connect again.")
    moved_connections: int = _score("Producers and consumers that had to connect again.")
    away: float = _score("Fraction of the traffic on other brokers than recorded, mean.")
    away_p95: float = _score("The same, 95 % of the time at most.")


SCORE_NAMES: Final = tuple(one.name for one in fields(Scores))

_SUMS: Final = (
    "moves",
    "placed",
    "drained",
    "returned",
    "moved_topics",
    "moved_connections",
)


def scores_of(lines: Mapping[str, Column]) -> Scores:
    """Return the scores of one combination; ``lines`` are columns by the names of `Line`.

    Refused rounds, and those in which the combination was settling, are left out.
    """
    settling = _kept(lines, settled=False)
    lines = _kept(lines, settled=True)
    weight_s = np.asarray(lines["weight_s"], dtype=np.float64)
    covered_s = float(weight_s.sum())
    broker_s = float(np.sum(lines["broker_s"]))
    volume = _mean(lines["bytes_per_s"], weight_s)
    moved, returned = (
        float(np.sum(lines[name])) for name in ("moved_bytes_per_s", "returned_bytes_per_s")
    )
    hourly = volume * covered_s / 3600
    found: dict[str, Any] = {
        "rounds": len(weight_s),
        "covered_s": covered_s,
        "overload_broker_s": float(np.sum(lines["overload_broker_s"])),
        "moved_bytes_per_s": moved,
        "moved_per_hour": moved / hourly if hourly > 0 else 0.0,
        "returned_per_hour": returned / hourly if hourly > 0 else 0.0,
        "settling_moves": int(np.sum(settling["moves"])),
        **{name: int(np.sum(lines[name])) for name in _SUMS},
    }
    found["overload_fraction"] = found["overload_broker_s"] / broker_s if broker_s > 0 else 0.0
    for name in ("deviation", "max_over_mean", "largest", "away"):
        found[name] = _mean(lines[name], weight_s)
        found[f"{name}_p95"] = percentile(lines[name], weight_s, 0.95)
    return Scores(penalty=_penalty(found), **found)


def stretches_of(lines: Mapping[str, Column], length_s: float = STRETCH_S) -> Mapping[int, float]:
    """Return the penalty of each stretch of ``length_s``, by its number since 1970."""
    lines = _kept(lines, settled=True)
    number = np.asarray(lines["at_ms"]) // round(1000 * length_s)
    order = np.argsort(number, kind="stable")
    found, firsts = np.unique(number[order], return_index=True)
    parts = {name: np.split(values[order], firsts[1:]) for name, values in lines.items()}
    return {
        int(each): scores_of({name: part[at] for name, part in parts.items()}).penalty
        for at, each in enumerate(found)
    }


def _kept(lines: Mapping[str, Column], *, settled: bool) -> Mapping[str, Column]:
    """Return the replayed rounds after a combination settled, or those before."""
    kept = (np.asarray(lines["refused"]) == "") & (np.asarray(lines["settling"]) != settled)
    return {name: np.asarray(values)[kept] for name, values in lines.items()}


def _penalty(found: Mapping[str, Any]) -> float:
    return float(
        (found["max_over_mean"] - 1)
        + P95_WEIGHT * (found["max_over_mean_p95"] - 1)
        + OVERLOAD_WEIGHT * found["overload_fraction"]
        + MOVED_WEIGHT * (found["moved_per_hour"] + found["returned_per_hour"])
    )


def _mean(values: Column, weight_s: Column) -> float:
    """Return the mean over time, or over rounds if all weights are 0."""
    if not len(weight_s):
        return 0.0
    return float(np.average(values, weights=weight_s if weight_s.any() else None))


def percentile(values: Column, weight_s: Column, fraction: float) -> float:
    """Return the weighted percentile: the value not exceeded for ``fraction`` of the time."""
    if not len(weight_s):
        return 0.0
    weight_s = weight_s if weight_s.any() else np.ones(len(weight_s))
    order = np.argsort(values, kind="stable")
    until = np.cumsum(weight_s[order])
    place = int(np.searchsorted(until, until[-1] * fraction * (1 - 1e-12)))
    return float(np.asarray(values)[order][min(place, len(order) - 1)])
