"""Running averages of a bundle's traffic: a short and a long one, as Pulsar keeps them.

A running average is the exact mean until it holds its maximum of samples, and from
then on an exponential one: each new sample has the weight 1 / maximum. Pulsar adds a sample
whenever any broker reports; here the leader adds one per bundle at a fixed interval, so that "10
samples" always cover the same time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates

SHORT_SAMPLES: Final = 10
LONG_SAMPLES: Final = 1000

# The rates that Pulsar assumes for a bundle that has not been measured yet.
DEFAULT_RATES: Final = Rates(50.0, 50.0, 50_000.0, 50_000.0)


@dataclass(frozen=True, slots=True)
class Average:
    """``samples`` never exceeds ``max_samples``; if it is 0, the rates are assumed."""

    max_samples: int
    samples: int
    rates: Rates

    def add(self, sample: Rates) -> "Average":
        count = min(self.samples + 1, self.max_samples)
        mixed = (
            ((count - 1) * old + new) / count
            for old, new in zip(self.rates.row(), sample.row(), strict=True)
        )
        return Average(self.max_samples, count, Rates(*mixed))


@dataclass(frozen=True, slots=True)
class BundleAverages:
    short: Average
    long: Average
    topics: int = 0

    @classmethod
    def supposed(cls, rates: Rates = DEFAULT_RATES) -> Self:
        """Return averages without samples: ``rates`` apply until the first sample."""
        return cls(Average(SHORT_SAMPLES, 0, rates), Average(LONG_SAMPLES, 0, rates))

    def add(self, sample: BundleStats) -> "BundleAverages":
        return BundleAverages(self.short.add(sample), self.long.add(sample), sample.topics)


def supposed_of(parts: Sequence[BundleAverages], fraction: float = 1.0) -> BundleAverages:
    """Return the assumed averages of a merged bundle, or a part of one, until it is measured."""

    def supposed(averages: Sequence[Average]) -> Average:
        columns = zip(*(one.rates.row() for one in averages), strict=True)
        # At most one sample, so that the first real sample has a weight of one half.
        samples = min(1, *(one.samples for one in averages))
        rates = Rates(*(sum(column) * fraction for column in columns))
        return Average(averages[0].max_samples, samples, rates)

    return BundleAverages(
        supposed([one.short for one in parts]),
        supposed([one.long for one in parts]),
        round(sum(one.topics for one in parts) * fraction),
    )


@dataclass(frozen=True, slots=True)
class Running:
    """Exponential averages of a broker's load (a score) and traffic since one start of it."""

    load: float
    bytes_per_s: float
    started_at_ms: int = 0


def exponential_average(
    past: NDArray[np.float64], values: NDArray[np.float64], kept_fraction: float
) -> NDArray[np.float64]:
    """Return averages that keep ``kept_fraction`` of the past; a first value replaces NaN."""
    mixed = past * kept_fraction + (1.0 - kept_fraction) * values
    return np.where(np.isnan(past), values, mixed)


def add_samples(
    averages: NDArray[np.float64],
    counts: NDArray[np.int64],
    samples: NDArray[np.float64],
    max_samples: int,
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return averages (bundles, 4) and counts with one more sample per row, as `Average.add`."""
    grown = np.minimum(counts + 1, max_samples)
    # Nearly all rows have the same count, and division by a scalar is several times faster.
    usual = int(grown.max(initial=1))
    mixed = _mixed(averages, samples, float(usual))
    others = np.flatnonzero(grown != usual)
    if len(others):
        divisor = grown[others, np.newaxis].astype(np.float64)
        mixed[others] = _mixed(averages[others], samples[others], divisor)
    return mixed, grown


def _mixed(
    averages: NDArray[np.float64],
    samples: NDArray[np.float64],
    divisor: float | NDArray[np.float64],
) -> NDArray[np.float64]:
    # In place: with a hundred thousand bundles each temporary array costs a millisecond.
    mixed: NDArray[np.float64] = (divisor - 1.0) * averages
    mixed += samples
    mixed /= divisor
    return mixed
