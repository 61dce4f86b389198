"""Costs of bundles for brokers in a replay: by a cost document, or as shares of traffic."""

from typing import Final, Protocol

import numpy as np

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.cost.document import CostDocument
from loadmanager.core.cost.learned import LearnedCost
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


class Costs(Protocol):
    """Costs of bundles at one frame; amounts are (bundles, resources) in the units of usage."""

    def leaving(self, rows: Indices) -> FloatArray:
        """Return the usage of bundles on their recorded owners."""

    def arriving(self, rows: Indices, brokers: Indices) -> FloatArray:
        """Return the usage of bundles on other brokers; ``brokers`` has a row for each bundle."""

    def predicted(self, rates: FloatArray, owner: Indices) -> FloatArray:
        """Return the usage of the brokers of this frame with other rates and owners of bundles.

        Their usage beyond that of bundles stays the same.
        """


class TrafficCosts:
    """The rule of `TrafficShare`: the usage of a broker at one frame is shared out by traffic.

    A bundle costs the same on every broker.
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

    def leaving(self, rows: Indices) -> FloatArray:
        """Return the shares of the bundles in the usage of their owners."""
        return self._amounts(self._frame.rates[rows], self._frame.owner[rows])

    def arriving(self, rows: Indices, brokers: Indices) -> FloatArray:  # noqa: ARG002 - the same
        """Return the same as `leaving`: shares do not depend on the broker."""
        return self.leaving(rows)

    def predicted(self, rates: FloatArray, owner: Indices) -> FloatArray:
        """Return the usage at the same price of each message and byte."""
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


class LearnedPrices:
    """Costs by the terms of a document; resources without reliable terms are shared by traffic."""

    def __init__(self, document: CostDocument) -> None:
        self._model = LearnedCost(document)

    def at(self, frame: Frame) -> "LearnedCosts":
        """Return the costs at ``frame``."""
        prices, trusted = self._model.prices(frame.brokers)
        return LearnedCosts(frame, prices.transpose(0, 2, 1), trusted)


class LearnedCosts:
    """Costs of bundles at one frame, by the class of the broker."""

    def __init__(self, frame: Frame, prices: FloatArray, known: Mask) -> None:
        self._frame = frame
        self._prices = prices
        self._known = known
        self._shares = TrafficCosts(frame)

    def leaving(self, rows: Indices) -> FloatArray:
        """Return the usage of bundles on their owners."""
        return self.arriving(rows, self._frame.owner[rows])

    def arriving(self, rows: Indices, brokers: Indices) -> FloatArray:
        """Return the usage of bundles on brokers of other classes."""
        amounts = np.einsum("nr,nru->nu", self._frame.rates[rows], self._prices[brokers])
        known = self._known[brokers]
        if known.all():
            return np.asarray(amounts)
        return np.where(known, amounts, self._shares.leaving(rows))

    def predicted(self, rates: FloatArray, owner: Indices) -> FloatArray:
        """Return the usage by terms, and by shares for resources without terms."""
        frame, count = self._frame, len(self._frame.reports)
        now = np.einsum("br,bru->bu", summed(frame.owner, frame.rates, count), self._prices)
        then = np.einsum("br,bru->bu", summed(owner, rates, count), self._prices)
        learned = np.maximum(frame.brokers.usage - now, 0.0) + then
        return np.where(self._known, learned, self._shares.predicted(rates, owner))
