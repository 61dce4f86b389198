"""Costs of bundles in a replay: shares of the traffic of their brokers."""

from typing import Final

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.rates import BYTES_IN, BYTES_OUT
from loadmanager.core.scores import (
    BANDWIDTH_IN,
    BANDWIDTH_OUT,
    CPU,
    DIRECT_MEMORY,
    RESOURCES,
    FloatArray,
)
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.views import summed

_MSGS: Final = slice(0, 2)
_BYTES: Final = slice(2, 4)


class TrafficCosts:
    """The rule of `TrafficShare`: the usage of a broker at one frame is shared out by traffic.

    A bundle costs the same on every broker. Amounts are (bundles, resources) in the units of usage.
    """

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        totals = np.concatenate([frame.brokers.traffic, [frame.brokers.traffic.sum(axis=0)]])
        usage = np.concatenate([frame.brokers.usage, [frame.brokers.usage.sum(axis=0)]])
        # The last row, of the whole cluster, is used for bundles without an owner (row -1).
        self._prices = _unit_prices(usage, totals)

    def _amounts(self, rates: FloatArray, owner: Indices) -> FloatArray:
        prices = self._prices[owner]
        return np.asarray(np.einsum("nr,nru->nu", rates[:, :4], prices))

    def of(self, rows: Indices) -> FloatArray:
        """Return the shares of the bundles in the usage of their recorded owners."""
        return self._amounts(self._frame.rates[rows], self._frame.owner[rows])

    def predicted(self, rates: FloatArray, owner: Indices) -> FloatArray:
        """Return the usage of the brokers of this frame with other rates and owners of bundles.

        The price of each message and byte, and the usage beyond that of bundles, stay the same.
        """
        frame, count = self._frame, len(self._frame.owner)
        former = np.full(len(rates), -1, dtype=np.intp)
        former[:count] = frame.owner
        shared = summed(frame.owner, self._amounts(frame.rates, frame.owner), len(frame.reports))
        amounts = summed(owner, self._amounts(rates, former), len(frame.reports))
        return np.asarray(np.maximum(frame.brokers.usage - shared, 0.0) + amounts)


def _unit_prices(usage: FloatArray, totals: FloatArray) -> FloatArray:
    """Return (brokers, 4 rates, resources): the usage for one unit of each rate."""
    prices = np.zeros((len(usage), 4, len(RESOURCES)))
    msgs, volume = totals[:, _MSGS].sum(axis=1), totals[:, _BYTES].sum(axis=1)
    prices[:, _MSGS, CPU] = _each(usage[:, CPU], msgs)[:, None] / 2
    prices[:, _BYTES, CPU] = _each(usage[:, CPU], volume)[:, None] / 2
    prices[:, _BYTES, DIRECT_MEMORY] = _each(usage[:, DIRECT_MEMORY], volume)[:, None]
    prices[:, BYTES_IN, BANDWIDTH_IN] = _each(usage[:, BANDWIDTH_IN], totals[:, BYTES_IN])
    prices[:, BYTES_OUT, BANDWIDTH_OUT] = _each(usage[:, BANDWIDTH_OUT], totals[:, BYTES_OUT])
    return prices


def _each(amount: FloatArray, units: FloatArray) -> FloatArray:
    return np.asarray(np.where(units > 0, amount / np.where(units > 0, units, 1.0), 0.0))
