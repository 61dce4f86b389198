"""Initial unit costs, before reports of the cluster: those of a published model."""

from typing import Final

import numpy as np

from loadmanager.core.cost.document import RATES, ClassCosts, CostDocument, Term
from loadmanager.core.cost.trust import distrust
from loadmanager.core.joint.unit_costs import PublishedCosts
from loadmanager.core.scores import RESOURCES, FloatArray

_SDS_OF_INTERVAL: Final = 3.29
"""An interval of 90 % is so many standard deviations wide."""

_NOTHING: Final = Term(0.0, 0.0, 0.0)


def published_costs(document: CostDocument) -> PublishedCosts:
    """Return what a document says of all classes together: unit costs are of the cluster.

    A class counts by its minutes. How far classes are apart is part of the deviation.
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
