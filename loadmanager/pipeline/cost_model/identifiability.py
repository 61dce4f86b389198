"""Identifiability: which terms are known, and which cannot be separated from each other."""

from enum import StrEnum
from typing import Final

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.rows import RATES

MOST_CONDITION: Final = 30.0
"""Condition numbers above this indicate collinearity (Belsley, Kuh and Welsch 1980)."""

_SHARED: Final = 0.5
_VAGUE: Final = 0.5
_NEGLIGIBLE: Final = 0.01


class Verdict(StrEnum):
    """How well a term is known."""

    KNOWN = "known"
    VAGUE = "vague"
    ENTANGLED = "entangled"
    UNVARIED = "unvaried"


def condition(gram: FloatArray) -> float:
    """Return the condition number of normal equations with scaled terms; 1 is the best.

    Terms that never vary are left out; perfect collinearity gives infinity.
    """
    values, _, _ = _scaled(gram)
    if not len(values):
        return float("inf")
    least, most = float(values.min()), float(values.max())
    return float(np.sqrt(most / least)) if least > most * 1e-15 else float("inf")


def entangled(gram: FloatArray) -> list[tuple[str, ...]]:
    """Return for each term those that it cannot be separated from.

    Terms are entangled if a direction with a condition index above 30 has at least half of the
    variance of two or more of them (Belsley's variance decomposition).
    """
    values, vectors, varied = _scaled(gram)
    partners: list[set[int]] = [set() for _ in RATES]
    if len(values):
        most = float(values.max())
        safe = np.maximum(values, most * 1e-15)
        parts = vectors**2 / safe
        shares = parts / parts.sum(axis=1, keepdims=True)
        poor = np.flatnonzero(np.sqrt(most / safe) > MOST_CONDITION)
        for direction in poor:
            together = set(np.flatnonzero(varied)[shares[:, direction] > _SHARED].tolist())
            for term in together:
                partners[term] |= together - {term}
    return [tuple(RATES[other] for other in sorted(others)) for others in partners]


def verdict(
    *, varied: bool, partners: tuple[str, ...], low: float, value: float, high: float, usage: float
) -> Verdict:
    """Return how well a term is known; all amounts are at typical rates.

    A term is known if its interval extends at most half of its value to either side, or by a
    negligible part of the usage.
    """
    if not varied:
        return Verdict.UNVARIED
    known = max(high - value, value - low) <= max(_VAGUE * value, _NEGLIGIBLE * usage)
    if known:
        return Verdict.KNOWN
    return Verdict.ENTANGLED if partners else Verdict.VAGUE


def _scaled(
    gram: FloatArray,
) -> tuple[FloatArray, FloatArray, "np.ndarray[tuple[int], np.dtype[np.bool_]]"]:
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    varied = size > 0
    inner = gram[np.ix_(varied, varied)] / np.outer(size[varied], size[varied])
    values, vectors = np.linalg.eigh(inner)
    return np.maximum(values, 0.0), vectors, varied
