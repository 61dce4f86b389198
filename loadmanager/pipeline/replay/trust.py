"""The level of trust in the scores of a combination, with the reasons."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import numpy as np

from loadmanager.core.scores import CPU, DIRECT_MEMORY, RESOURCES
from loadmanager.pipeline.replay.measures import LEAST_DECISIONS, LEAST_HISTORY_S, Column
from loadmanager.pipeline.replay.segment_replay import ERROR_COLUMNS
from loadmanager.pipeline.reporting.formats import span

_LEAST_REPRODUCED: Final = 0.95
_CLOSE_ERROR, _FAIR_ERROR = 0.05, 0.10
_CLOSE_AWAY, _FAIR_AWAY = 0.10, 0.50
_MOST_REFUSED: Final = 0.10
_JUDGED: Final = (CPU, DIRECT_MEMORY, *range(DIRECT_MEMORY + 1, len(RESOURCES)))
"""Without the heap, which is in no score and depends on garbage collection."""


class Level(StrEnum):
    HIGH = "high"
    FAIR = "fair"
    LOW = "low"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Evidence on the replay from the history itself, the same for all combinations.

    The replayed rounds cover ``covered_s``; ``decisions`` bundles were moved for load.
    ``reproduced`` of the ``bases`` were decided exactly as recorded. ``changed`` and ``unchanged``
    are mean errors of predicted usage by resource, relative to the limits, of brokers whose
    bundles changed and of all others; None if there were none.
    """

    rounds: int
    refused: Mapping[str, int]
    covered_s: float
    decisions: int
    bases: int
    reproduced: int
    difference: str
    changed: Mapping[str, float | None]
    unchanged: Mapping[str, float | None]
    changed_count: int

    @property
    def refused_fraction(self) -> float:
        return sum(self.refused.values()) / self.rounds if self.rounds else 1.0

    @property
    def too_little(self) -> str:
        """What is missing for advice; empty if nothing is."""
        if self.covered_s >= LEAST_HISTORY_S and self.decisions >= LEAST_DECISIONS:
            return ""
        return (
            f"it needs {span(LEAST_HISTORY_S)} of history and {LEAST_DECISIONS} decisions to move "
            f"a bundle; has {span(self.covered_s)} and {self.decisions:,}"
        )

    @property
    def reproduced_fraction(self) -> float | None:
        """The fraction of base rounds decided as recorded; None without base rounds."""
        return self.reproduced / self.bases if self.bases else None

    @property
    def error(self) -> float | None:
        """The largest error of the resources in scores; None if unknown."""
        known = [self.changed[RESOURCES[at]] for at in _JUDGED]
        return max((one for one in known if one is not None), default=None)


def evidence_of(lines: Mapping[str, Column]) -> Evidence:
    """Return the evidence in recorded rounds; ``lines`` are columns by the names of `Line`."""
    refused = np.asarray(lines["refused"])
    words, counts = np.unique(refused[refused != ""], return_counts=True)
    verdicts = [one for one in lines["reproduced"] if one is not None]
    wrong = [
        note for one, note in zip(lines["reproduced"], lines["note"], strict=True) if one is False
    ]
    sums = dict.fromkeys(ERROR_COLUMNS, 0.0)
    for errors in lines["errors"]:
        if errors is not None:
            for column, value in zip(ERROR_COLUMNS, errors, strict=True):
                sums[column] += value
    return Evidence(
        rounds=len(refused),
        refused={str(word): int(count) for word, count in zip(words, counts, strict=True)},
        covered_s=float(np.sum(np.asarray(lines["weight_s"], dtype=np.float64)[refused == ""])),
        decisions=int(np.sum(lines["moves"])),
        bases=len(verdicts),
        reproduced=sum(map(bool, verdicts)),
        difference=wrong[0] if wrong else "",
        changed=_means(sums, "changed"),
        unchanged=_means(sums, "unchanged"),
        changed_count=int(max(sums["changed", one, "count"] for one in RESOURCES)),
    )


def _means(sums: Mapping[tuple[str, str, str], float], group: str) -> Mapping[str, float | None]:
    return {
        one: sums[group, one, "sum"] / sums[group, one, "count"]
        if sums[group, one, "count"]
        else None
        for one in RESOURCES
    }


def judged(evidence: Evidence, away: float) -> tuple[Level, str]:
    """Return the level of trust and its reasons, with ``away`` of the traffic elsewhere.

    The level is that of the weakest reason.
    """
    levels: list[tuple[Level, str]] = [
        *_of_decisions(evidence),
        *_of_loads(evidence, away),
    ]
    order = list(Level)
    worst = max((level for level, _ in levels), key=order.index)
    return worst, "; ".join(text for level, text in levels if level is worst)


def _of_decisions(evidence: Evidence) -> Sequence[tuple[Level, str]]:
    found: list[tuple[Level, str]] = []
    if evidence.too_little:
        found.append((Level.NONE, evidence.too_little))
    share = evidence.reproduced_fraction
    if share is None:
        found.append((Level.NONE, "no base round could be decided again"))
    elif share < _LEAST_REPRODUCED:
        text = f"only {share:.0%} of the base rounds were decided again as recorded"
        found.append((Level.NONE, text))
    elif share < 1.0:
        text = f"{1 - share:.1%} of the base rounds were decided otherwise than recorded"
        found.append((Level.LOW, text))
    if evidence.refused_fraction > _MOST_REFUSED:
        text = f"{evidence.refused_fraction:.0%} of the rounds could not be replayed"
        found.append((Level.LOW, text))
    return found


def _of_loads(evidence: Evidence, away: float) -> Sequence[tuple[Level, str]]:
    error = evidence.error
    if away <= _CLOSE_AWAY:
        found = [(Level.HIGH, f"all but {away:.0%} of the traffic lay as recorded")]
    elif away <= _FAIR_AWAY:
        found = [(Level.FAIR, f"{away:.0%} of the traffic lay elsewhere, by shares of traffic")]
    else:
        text = f"{away:.0%} of the traffic lay elsewhere: its loads are those of shares of traffic"
        close = error is not None and error <= _CLOSE_ERROR
        found = [(Level.FAIR if close else Level.LOW, text)]
    if error is None:
        if away > _CLOSE_AWAY:
            found.append((Level.LOW, "no recorded change shows how well loads are predicted"))
        return found
    points = f"loads after recorded changes were predicted to {error * 100:.1f} points"
    if error > _FAIR_ERROR:
        found.append((Level.LOW, points))
    elif error > _CLOSE_ERROR:
        found.append((Level.FAIR, points))
    else:
        found.append((Level.HIGH, points))
    return found
