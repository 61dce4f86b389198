"""Initial unit costs, from a published model."""

from typing import Final

import numpy as np

from loadmanager.core.cost.document import RATES, ClassCosts, CostDocument, Term
from loadmanager.core.cost.trust import distrust
from loadmanager.core.joint.unit_costs import PublishedCosts
from loadmanager.core.scores import RESOURCES, FloatArray

_SDS_OF_INTERVAL: Final = 3.29
"""The width of a 90 % interval in standard deviations."""

_NOTHING: Final = Term(0.0, 0.0, 0.0)


def published_costs(document: CostDocument) -> PublishedCosts:
    """Return the costs of a document over all classes, as unit costs are common to the cluster.

    Classes are weighted by their minutes. Differences between classes are part of the deviation.
    """
    shape = (len(RESOURCES), len(RATES))
    mean, sd = np.zeros(shape), np.zeros(shape)
    known = np.zeros(len(RESOURCES), dtype=np.bool_)
    for row, resource in enumerate(RESOURCES):
        sure = [
            one for name, one in document.classes.items() if not distrust(document, name, resource)
        ]
        if sure:
            mean[row], sd[row] = _together(sure, resource)
            known[row] = True
    return PublishedCosts(mean=mean, sd=sd, known=known)


def _together(classes: list[ClassCosts], resource: str) -> tuple[FloatArray, FloatArray]:
    terms = [[one.resources[resource].get(rate, _NOTHING) for rate in RATES] for one in classes]
    values = np.array([[term.value for term in row] for row in terms])
    widths = np.array([[term.high - term.low for term in row] for row in terms])
    weight = np.array([[float(max(one.minutes, 1))] for one in classes])
    weight /= weight.sum()
    mean = (weight * values).sum(axis=0)
    square = (widths / _SDS_OF_INTERVAL) ** 2 + (values - mean) ** 2
    return mean, np.sqrt((weight * square).sum(axis=0))
