"""The publication rules of `core.report` for all modelled agents at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.report import ReportRules
from loadmanager.core.scores import RESOURCES, FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Reading:
    """The input of the rules, one row per broker: a sample, or the last report.

    ``usage`` has a column for each resource, a fraction. ``at_s`` is the time of the sample.
    """

    at_s: FloatArray
    usage: FloatArray
    msgs_per_s: FloatArray
    bytes_per_s: FloatArray
    draining: Mask
    started_at_ms: NDArray[np.int64]

    @classmethod
    def nothing(cls, count: int) -> "Reading":
        """Return the state before any report: times are -inf, other values 0."""
        return cls(
            at_s=np.full(count, -np.inf),
            usage=np.zeros((count, len(RESOURCES))),
            msgs_per_s=np.zeros(count),
            bytes_per_s=np.zeros(count),
            draining=np.zeros(count, dtype=np.bool_),
            started_at_ms=np.zeros(count, dtype=np.int64),
        )

    def put(self, rows: Indices, other: "Reading") -> None:
        self.at_s[rows] = other.at_s[rows]
        self.usage[rows] = other.usage[rows]
        self.msgs_per_s[rows] = other.msgs_per_s[rows]
        self.bytes_per_s[rows] = other.bytes_per_s[rows]
        self.draining[rows] = other.draining[rows]
        self.started_at_ms[rows] = other.started_at_ms[rows]


def due(
    rules: ReportRules,
    stands: Mask,
    last: Reading,
    current: Reading,
    jitter: FloatArray,
    *,
    other_bundles: Mask,
) -> Mask:
    """Return the brokers whose samples are published, by the rules of `core.report.due`.

    ``stands`` marks brokers with a report, ``other_bundles`` those whose report lists other bundles
    than the sample.
    """
    registration = (last.draining != current.draining) | (
        last.started_at_ms != current.started_at_ms
    )
    age_s = current.at_s - last.at_s
    old = age_s >= rules.max_interval_s * (1.0 - rules.jitter_fraction * jitter)
    usage = (np.abs(current.usage - last.usage) > rules.change_points).any(axis=1)
    fraction = rules.change_fraction
    msgs = _moved(last.msgs_per_s, current.msgs_per_s, fraction, rules.floor_msgs_per_s)
    volume = _moved(last.bytes_per_s, current.bytes_per_s, fraction, rules.floor_bytes_per_s)
    changed = other_bundles | usage | msgs | volume | old
    return np.asarray(~stands | registration | ((age_s >= rules.min_interval_s) & changed))


def _moved(last: FloatArray, current: FloatArray, fraction: float, floor: float) -> Mask:
    change = np.abs(current - last)
    return np.asarray((change > fraction * last) & (change >= floor))
