"""The load of a broker as one number, computed from its resources by Pulsar's rule.

Pulsar's accident `float32-usage`: it divides in 32-bit float and widens afterwards. A
64-bit quotient differs in the seventh digit, which is enough to reverse a comparison. With
``like_java`` the rounding is kept, as in the figure written for Pulsar (`max_usage`); everything
else divides in 64 bits.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.load import LoadReport, ResourceUsage
from loadmanager.core.settings import Settings, setting

FloatArray = NDArray[np.float64]

RESOURCES: Final = ("cpu", "memory", "direct_memory", "bandwidth_in", "bandwidth_out")
"""The order of the columns of resources in arrays."""

CPU, MEMORY, DIRECT_MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT = range(5)

_SCORED: Final = [CPU, DIRECT_MEMORY, BANDWIDTH_IN, BANDWIDTH_OUT]

_WEIGHT: Final = (0.0, 1000.0)


@dataclass(frozen=True, slots=True)
class ResourceWeights(Settings):
    """The factors by which the usage of each resource is multiplied before the largest is taken.

    Heap memory never counts in Pulsar's modular scores, whatever its weight, because it depends
    on the garbage collector. ``memory`` counts only in the exponential average of the extensible
    load manager.

    ``like_java`` computes with Pulsar's accidents; the planner's mode sets it.
    """

    cpu: float = setting(
        "Weight of CPU in a broker's score; 0 ignores it.",
        "multiplier",
        "loadBalancerCPUResourceWeight",
        default=1.0,
        within=_WEIGHT,
    )
    memory: float = setting(
        "Weight of heap memory, used only by TransferShedder; 0 ignores it.",
        "multiplier",
        "loadBalancerMemoryResourceWeight",
        default=0.0,
        within=_WEIGHT,
    )
    direct_memory: float = setting(
        "Weight of direct memory in a broker's score; 0 ignores it.",
        "multiplier",
        "loadBalancerDirectMemoryResourceWeight",
        default=0.0,
        within=_WEIGHT,
    )
    bandwidth_in: float = setting(
        "Weight of inbound network use in a broker's score; 0 ignores it.",
        "multiplier",
        "loadBalancerBandwidthInResourceWeight",
        default=1.0,
        within=_WEIGHT,
    )
    bandwidth_out: float = setting(
        "Weight of outbound network use in a broker's score; 0 ignores it.",
        "multiplier",
        "loadBalancerBandwidthOutResourceWeight",
        default=1.0,
        within=_WEIGHT,
    )
    like_java: bool = False

    def as_array(self) -> FloatArray:
        return np.array([getattr(self, name) for name in RESOURCES])


def percent_usage(usage: FloatArray, limit: FloatArray) -> NDArray[np.float32]:
    """Return usage in percent of the limit, every step in 32-bit float; 0 without a limit.

    Values above 100 are real overload and are not clipped.
    """
    known = limit > 0
    safe = np.where(known, limit, 1.0).astype(np.float32)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        percent = usage.astype(np.float32) / safe * np.float32(100)
    return np.where(known, percent, np.float32(0))


def max_usage(usage: FloatArray, limit: FloatArray) -> NDArray[np.float32]:
    """Return the largest usage of each row as a fraction, in 32-bit float; heap left out.

    Rows are brokers, columns `RESOURCES`.
    """
    return np.asarray(np.max(percent_usage(usage, limit)[..., _SCORED], axis=-1) / np.float32(100))


def weighted_max_usage(
    usage: FloatArray, limit: FloatArray, weights: ResourceWeights
) -> FloatArray:
    return _weighted_max(usage, limit, weights, _SCORED)


def weighted_max_with_memory(
    usage: FloatArray, limit: FloatArray, weights: ResourceWeights
) -> FloatArray:
    """Return the largest weighted usage, heap included: the extensible manager's score."""
    return _weighted_max(usage, limit, weights, range(len(RESOURCES)))


def _weighted_max(
    usage: FloatArray, limit: FloatArray, weights: ResourceWeights, columns: Sequence[int]
) -> FloatArray:
    largest = np.zeros(usage.shape[:-1])
    for column, factor in zip(columns, weights.as_array()[columns].tolist(), strict=True):
        if factor > 0:
            used, most = usage[..., column], limit[..., column]
            if weights.like_java:  # float32-usage: steps after the percentage use 64 bits
                share = percent_usage(used, most).astype(np.float64) * factor / 100.0
            else:
                share = _fraction(used, most) * factor
            largest = np.maximum(largest, share)
    return largest


def _fraction(usage: FloatArray, limit: FloatArray) -> FloatArray:
    # An unknown limit is 0; its usage fraction is then 0.
    with np.errstate(over="ignore"):
        return np.asarray(usage / np.where(limit > 0, limit, np.inf))


def report_usage(report: LoadReport) -> tuple[list[float], list[float]]:
    """Return the usages and limits of one report, in the order of `RESOURCES`; 0 if unknown."""
    resources: list[ResourceUsage | None] = [getattr(report, name) for name in RESOURCES]
    usages = [0.0 if item is None else item.usage for item in resources]
    return usages, [0.0 if item is None else item.limit for item in resources]


def report_variance(report: LoadReport) -> list[float]:
    """Return the variances of usage in one report, in the order of `RESOURCES`, NaN if unknown."""
    return [_variance(getattr(report, name)) for name in RESOURCES]


def _variance(used: ResourceUsage | None) -> float:
    return math.nan if used is None or used.variance is None else used.variance


def report_max_usage(report: LoadReport) -> float:
    """Return Pulsar's ``maxResourceUsage`` of one report, a fraction."""
    usages, limits = report_usage(report)
    return float(max_usage(np.array(usages), np.array(limits)))
