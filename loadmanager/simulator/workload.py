"""What is asked for at each moment: base rates times patterns, and recorded rates."""

from dataclasses import dataclass

import numpy as np

from loadmanager.core.ids import Namespace
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.patterns import Factor, Process, process
from loadmanager.simulator.topics import Share, Topics
from loadmanager.simulator.traces import Trace


@dataclass(frozen=True, slots=True)
class _Stream:
    share: Share
    processes: tuple[Process, ...]


class Workload:
    """The demanded rates of all bundles, step by step.

    Args:
        topics: the bundles and their base rates.
        trace: recorded rates that are added, each row until the next one; None for none.
        rng: for the patterns; each pattern of each load gets a generator of its own.
    """

    def __init__(self, topics: Topics, trace: Trace | None, rng: np.random.Generator) -> None:
        self._topics = topics
        self._trace = trace
        self._traced = np.zeros((len(topics.bundles), 4))
        self._traced_row = -1
        self._shift = np.ones((len(topics.bundles), 1))
        self._streams = tuple(_stream(share, rng) for share in topics.shares)

    def shift(self, namespace: Namespace, factor: float) -> None:
        """Multiply all of a namespace by ``factor`` from now on."""
        self._shift[self._topics.namespaces[namespace]] *= factor

    def at(self, now_s: float) -> FloatArray:
        """Return the demanded rates (K, 4); ``now_s`` never goes back."""
        rates = self._replayed(now_s).copy()
        for stream in self._streams:
            share = stream.share
            factor: Factor = 1.0
            for each in stream.processes:
                factor = factor * each.factor(now_s)
            rates[share.rows] += (share.msgs_in_per_s * factor)[:, np.newaxis] * share.profile
        return np.multiply(rates, self._shift, out=rates)

    def _replayed(self, now_s: float) -> FloatArray:
        """Return the rates of the trace at ``now_s``: nothing before its first row."""
        if self._trace is None:
            return self._traced
        row = int(np.searchsorted(self._trace.times_s, now_s, side="right")) - 1
        if row != self._traced_row:
            self._traced_row = row
            for column in range(4):
                self._traced[:, column] = np.bincount(
                    self._topics.traced,
                    self._trace.rates[row, :, column],
                    minlength=len(self._traced),
                )
        return self._traced


def _stream(share: Share, rng: np.random.Generator) -> _Stream:
    patterns = share.load.patterns
    own = rng.spawn(len(patterns))
    bundles = len(share.msgs_in_per_s)
    made = (process(pattern, bundles, one) for pattern, one in zip(patterns, own, strict=True))
    return _Stream(share, tuple(made))
