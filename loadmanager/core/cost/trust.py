"""Decides which learned costs are good enough to be used.

A leader with a bad model moves bundles without benefit, or onto a broker that cannot carry them.
Traffic shares are always available, so the costs of each resource and class must prove
themselves by their quality in held-out minutes, as recorded in the document.
"""

from typing import Final

import numpy as np

from loadmanager.core.cost.document import RATES, ClassCosts, CostDocument, Quality

WIDEST_FRACTION: Final = 0.5
"""Half the 90 % interval of the cost of typical traffic, as a fraction of that cost."""

WORST_MAPE: Final = 0.3
LEAST_COVERAGE: Final = 0.6
"""If fewer of the values lie within their 90 % intervals, the model cannot be trusted."""

LEAST_HELD_OUT_MINUTES: Final = 30


def distrust(document: CostDocument, name: str, resource: str) -> str:
    """Return why the costs of one resource of a class are not trusted, "" if they are."""
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
    known = [terms[rate] for rate in RATES if rate in terms]
    total = float(np.array([term.value for term in known]) @ amounts)
    if total <= 0.0:
        return "typical traffic costs nothing of it"
    if fraction is None:
        # This assumes independent terms; terms that are confused with each other have errors in
        # opposite directions.
        widths = np.array([(term.high - term.low) / 2 for term in known])
        fraction = float(np.sqrt(((widths * amounts) ** 2).sum())) / total
    if fraction > WIDEST_FRACTION:
        return f"known to within {fraction:.0%}, more than {WIDEST_FRACTION:.0%}"
    return ""
