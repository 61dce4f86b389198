"""Resource usage per unit of each kind of work, and of a broker without any: a decayed regression.

Ridge regression with priors where nothing varies yet: CPU depends half on messages and half on
bytes, as with traffic shares; a byte on the network is eight thousandths of a kbit. No cost is
negative. The last of the F kinds is the broker itself, of which each has one.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.joint.served import CONNECTIONS, KINDS, TOPICS
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    DIRECT_MEMORY,
    MEMORY,
    RESOURCES,
    FloatArray,
)

_KBIT_PER_BYTE: Final = 8e-3
_LEAST_USUAL: Final = 1e-6
_COMMON_SD: Final = 0.15
"""Of what a broker without work uses, as a fraction of the usual usage."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CostSums:
    """The sums of a weighted regression by resource; the weight of the past decays.

    ``gram`` is (R, F, F), ``moment`` (R, F), ``weight`` (R,), and ``shown`` (R,) the sum of all
    usage: the prior costs must not depend on an assumed background.
    """

    gram: FloatArray
    moment: FloatArray
    weight: FloatArray
    shown: FloatArray

    @classmethod
    def nothing(cls) -> "CostSums":
        resources, kinds = len(RESOURCES), len(KINDS) + 1
        return cls(
            gram=np.zeros((resources, kinds, kinds)),
            moment=np.zeros((resources, kinds)),
            weight=np.zeros(resources),
            shown=np.zeros(resources),
        )

    def after(
        self,
        kept: float,
        weight: FloatArray,
        work: FloatArray,
        target: FloatArray,
        usage: FloatArray,
    ) -> "CostSums":
        """Return the sums with observations: (B, R, F) work, all else (B, R).

        ``target`` is the part of the ``usage`` to be explained by the work.
        """
        return CostSums(
            gram=kept * self.gram + np.einsum("br,brf,brg->rfg", weight, work, work),
            moment=kept * self.moment + np.einsum("br,brf,br->rf", weight, work, target),
            weight=kept * self.weight + weight.sum(axis=0),
            shown=kept * self.shown + (weight * usage).sum(axis=0),
        )


def solved(sums: CostSums) -> FloatArray:
    """Return (R, F): the non-negative costs that fit the sums best."""
    return np.stack([_solved_one(sums, one) for one in range(len(RESOURCES))])


def doubt(sums: CostSums, resource: int, work: FloatArray) -> tuple[float, float]:
    """Return the variance of the cost of ``work``, in the units of reports, before and after data.

    Both are 0 before any report.
    """
    if sums.weight[resource] <= 0:
        return 0.0, 0.0
    one = _Regression.of(sums, resource)
    amounts = np.append(work, 0.0) / one.scale
    after = amounts @ np.linalg.solve(one.matrix, amounts)
    return float(((one.sd * amounts) ** 2).sum()), float(after)


def _solved_one(sums: CostSums, resource: int) -> FloatArray:
    found = np.zeros(len(KINDS) + 1)
    if sums.weight[resource] <= 0:
        return found
    one = _Regression.of(sums, resource)
    vector = sums.moment[resource] / one.scale + one.mean / one.sd**2
    free = one.free
    while len(free):
        part = np.linalg.solve(one.matrix[np.ix_(free, free)], vector[free])
        if part.min() >= 0:
            found[free] = part
            break
        free = np.delete(free, int(part.argmin()))
    return np.asarray(found / one.scale)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class _Regression:
    """The normal equations of one resource, each kind in units of its usual size.

    ``mean`` and ``sd`` are the prior, which is part of ``matrix``.
    """

    matrix: FloatArray
    mean: FloatArray
    sd: FloatArray
    scale: FloatArray
    free: Indices

    @classmethod
    def of(cls, sums: CostSums, resource: int) -> "_Regression":
        gram, weight = sums.gram[resource], float(sums.weight[resource])
        size = np.sqrt(np.diag(gram) / weight)  # The usual size of each kind.
        usual = max(float(sums.shown[resource]) / weight, _LEAST_USUAL)
        mean, sd = _prior(resource, size, usual)
        scale = np.where(size > 0, size, 1.0)
        matrix = gram / np.outer(scale, scale) + np.diag(1.0 / sd**2)
        return cls(matrix=matrix, mean=mean, sd=sd, scale=scale, free=np.flatnonzero(size > 0))


def _prior(resource: int, size: FloatArray, usual: float) -> tuple[FloatArray, FloatArray]:
    mean, sd = np.zeros(len(KINDS) + 1), np.full(len(KINDS) + 1, 0.2 * usual)
    sd[-1] = _COMMON_SD * usual
    if resource in {BANDWIDTH_IN, BANDWIDTH_OUT}:
        own = BYTES_IN if resource == BANDWIDTH_IN else BYTES_OUT
        mean[own] = _KBIT_PER_BYTE * size[own]
        sd[own] = 0.05 * max(usual, float(mean[own]))
        sd[[TOPICS, CONNECTIONS]] = 0.02 * usual
    elif resource in {MEMORY, DIRECT_MEMORY}:
        mean[[BYTES_IN, BYTES_OUT]] = 0.5 * usual
    else:
        rates = [MSGS_IN, MSGS_OUT, BYTES_IN, BYTES_OUT]
        mean[rates] = 0.25 * usual
        sd[rates] = 0.5 * usual
    return mean, sd
