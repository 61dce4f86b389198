"""The cost model that needs no learning: a bundle uses its share of the traffic."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.rates import BYTES_IN, BYTES_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    MEMORY,
    FloatArray,
)


class CostModel(Protocol):
    """Predicts what serving a bundle uses."""

    def usage(self, view: ClusterView, bundle: BundleId, source: BrokerId | None) -> FloatArray:
        """Return the usage of ``bundle``, by `RESOURCES`, in the units of load reports.

        ``source`` is the broker that serves it now, None for no broker.
        """

    def elsewhere(
        self,
        view: ClusterView,
        bundle: BundleId,
        source: BrokerId | None,
        usage: FloatArray,
        rows: Indices,
    ) -> FloatArray:
        """Return what ``bundle``, which costs ``usage`` where it is, would cost other brokers.

        One row for each of ``rows`` of the brokers.
        """


@dataclass(frozen=True, slots=True)
class TrafficShare:
    """A bundle uses of each resource what its traffic is of its broker's traffic.

    CPU goes half by messages and half by bytes, network by bytes of its direction,
    direct memory by bytes. Heap stays where it is. For a bundle that no broker serves,
    the whole cluster's usage and traffic stand in for the broker's; one that was never
    measured costs as much as the mean of all bundles, because what is supposed of its
    traffic may be a multiple of everything a small cluster does.
    """

    def usage(self, view: ClusterView, bundle: BundleId, source: BrokerId | None) -> FloatArray:
        """Return the usage of ``bundle``."""
        row = view.bundles.row(bundle)
        if row is None or not view.bundles.known[row]:
            return _mean_usage(view)
        if source is None:
            totals, used = view.brokers.traffic.sum(axis=0), view.brokers.usage.sum(axis=0)
        else:
            serving = view.row(source)
            totals, used = view.brokers.traffic[serving], view.brokers.usage[serving]
        rates = view.bundles.short[row]
        msgs = _share(rates[:2].sum(), totals[:2].sum())
        volume = _share(rates[2:].sum(), totals[2:].sum())
        shares = np.zeros(5)
        shares[CPU] = (msgs + volume) / 2.0
        shares[DIRECT_MEMORY] = volume
        shares[BANDWIDTH_IN] = _share(rates[BYTES_IN], totals[BYTES_IN])
        shares[BANDWIDTH_OUT] = _share(rates[BYTES_OUT], totals[BYTES_OUT])
        return np.asarray(shares * used)

    def elsewhere(
        self,
        view: ClusterView,  # noqa: ARG002 - all brokers are held to be equally fast
        bundle: BundleId,  # noqa: ARG002
        source: BrokerId | None,  # noqa: ARG002
        usage: FloatArray,
        rows: Indices,
    ) -> FloatArray:
        """Return ``usage`` for each of ``rows``."""
        return np.broadcast_to(usage, (len(rows), len(usage)))


def _mean_usage(view: ClusterView) -> FloatArray:
    usage = view.brokers.usage.sum(axis=0) / max(len(view.owned.rows), 1)
    usage[MEMORY] = 0.0
    return np.asarray(usage)


def _share(part: float, whole: float) -> float:
    # Not divided first: by the smallest numbers that overflows.
    if part >= whole:
        return 1.0 if whole > 0 else 0.0
    return float(part / whole)
