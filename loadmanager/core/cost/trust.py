"""Which learned costs are good enough to decide by.

A leader that believes a bad model moves bundles for nothing, or onto a broker that cannot
bear them. Traffic shares are always there, so each resource of each class has to earn
its place, by what the document itself says of minutes that it was not learned from.
"""

from typing import Final

import numpy as np

from loadmanager.core.cost.document import RATES, ClassCosts, CostDocument, Quality

WIDEST_FRACTION: Final = 0.5
"""Half the 90 % interval of what typical traffic costs, as a fraction of that cost."""

WORST_MAPE: Final = 0.3
LEAST_COVERAGE: Final = 0.6
"""Intervals of 90 % that held less than this are not honest, and nothing else may be."""

LEAST_HELD_OUT_MINUTES: Final = 30


def distrust(document: CostDocument, name: str, resource: str) -> str:
    """Return why one resource of a class is not decided by, "" if it is."""
    costs = document.classes[name]
    quality = document.quality.get(name, {}).get(resource)
    if quality is None or quality.held_out_minutes < LEAST_HELD_OUT_MINUTES:
        minutes = 0 if quality is None else quality.held_out_minutes
        return f"tested on {minutes} minutes, fewer than {LEAST_HELD_OUT_MINUTES}"
    return _poor(quality) or _vague(costs, resource, quality.typical_error)


def _poor(quality: Quality) -> str:
    if quality.mape > WORST_MAPE:
        return f"wrong by {quality.mape:.0%}, more than {WORST_MAPE:.0%}"
    if quality.baseline_mape is not None and quality.mape > quality.baseline_mape:
        return f"wrong by {quality.mape:.0%}, traffic shares by {quality.baseline_mape:.0%}"
    if quality.coverage < LEAST_COVERAGE:
        return f"intervals held {quality.coverage:.0%}, fewer than {LEAST_COVERAGE:.0%}"
    return ""


def _vague(costs: ClassCosts, resource: str, fraction: float | None) -> str:
    terms = costs.resources.get(resource, {})
    amounts = np.array([costs.typical.get(rate, 0.0) for rate in RATES if rate in terms])
    values = np.array([terms[rate].value for rate in RATES if rate in terms])
    total = float(values @ amounts)
    if total <= 0.0:
        return "typical traffic costs nothing of it"
    if fraction is None:
        fraction = _in_quadrature(costs, resource) / total
    if fraction > WIDEST_FRACTION:
        return f"known to within {fraction:.0%}, more than {WIDEST_FRACTION:.0%}"
    return ""


def _in_quadrature(costs: ClassCosts, resource: str) -> float:
    """Return half the interval of the cost of typical traffic, as far as terms have intervals.

    Terms that are mistaken for each other are wrong in opposite directions, which they do
    not have one.
    """
    terms = costs.resources.get(resource, {})
    amounts = np.array([costs.typical.get(rate, 0.0) for rate in RATES if rate in terms])
    widths = np.array([(terms[rate].high - terms[rate].low) / 2 for rate in RATES if rate in terms])
    return float(np.sqrt(((widths * amounts) ** 2).sum()))
