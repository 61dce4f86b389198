"""The scores of each combination from the lines of all rounds."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

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
