"""The demand at each moment: base rates times patterns, plus recorded rates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.ids import Namespace
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.patterns import Factor, Process, process
from loadmanager.simulator.scenario.loads import Pattern
from loadmanager.simulator.topics import Share, Topics
from loadmanager.simulator.traces import Trace


@dataclass(frozen=True, slots=True)
class _Stream:
    share: Share
    processes: tuple[Process, ...]


@dataclass(frozen=True, slots=True)
class _Row:
    number: int
    rates: FloatArray


class Workload:
    """The demanded rates of all bundles, step by step.

    Args:
        topics: the bundles and their base rates.
        trace: recorded rates that are added; None for none.
        rng: for the patterns; each pattern of each load has its own generator.
        interpolated: whether rates of the trace are interpolated between rows.
        trace_patterns: patterns that multiply the rates of the trace.
    """

    def __init__(
        self,
        topics: Topics,
        trace: Trace | None,
        rng: np.random.Generator,
        *,
        interpolated: bool = False,
        trace_patterns: Sequence[Pattern] = (),
    ) -> None:
        self._topics = topics
        self._trace = trace
        self._interpolated = interpolated
        self._rows = (_Row(-1, self._nothing()), _Row(-1, self._nothing()))
        self._shift = np.ones((len(topics.bundles), 1))
        self._streams = tuple(_stream(share, rng) for share in topics.shares)
        self._trace_processes = _processes(trace_patterns, len(topics.bundles), rng)

    def shift(self, namespace: Namespace, factor: float) -> None:
        self._shift[self._topics.namespaces[namespace]] *= factor

    def at(self, now_s: float) -> FloatArray:
        """Return the demanded rates (K, 4); ``now_s`` never decreases."""
        rates = self._replayed(now_s) * _factor(self._trace_processes, now_s)
        for stream in self._streams:
            share = stream.share
            msgs_in_per_s = share.msgs_in_per_s[:, np.newaxis] * _factor(stream.processes, now_s)
            rates[share.rows] += msgs_in_per_s * share.profile
        return np.multiply(rates, self._shift, out=rates)

    def _nothing(self) -> FloatArray:
        return np.zeros((len(self._topics.bundles), 4))

    def _replayed(self, now_s: float) -> FloatArray:
        """Return the rates of the trace at ``now_s``, which are 0 before its first row."""
        if self._trace is None:
            return self._rows[0].rates
        times_s = self._trace.times_s
        number = int(np.searchsorted(times_s, now_s, side="right")) - 1
        if number != self._rows[0].number:
            # The current row usually was the next one before.
            known = {row.number: row for row in self._rows}
            self._rows = (
                known.get(number) or self._row(number),
                self._row(number + 1) if self._interpolated else self._rows[1],
            )
        now, after = self._rows
        if not self._interpolated or not 0 <= number < len(times_s) - 1:
            return now.rates
        passed = (now_s - times_s[number]) / (times_s[number + 1] - times_s[number])
        return np.asarray(now.rates + passed * (after.rates - now.rates))

    def _row(self, number: int) -> "_Row":
        rates = self._nothing()
        if self._trace is not None and 0 <= number < len(self._trace.times_s):
            for column in range(4):
                rates[:, column] = np.bincount(
                    self._topics.traced,
                    self._trace.rates[number, :, column],
                    minlength=len(rates),
                )
        return _Row(number, rates)


def _factor(processes: Iterable[Process], now_s: float) -> FloatArray:
    factor: Factor = 1.0
    for each in processes:
        factor = factor * each.factor(now_s)
    return np.reshape(factor, (-1, 1))


def _processes(
    patterns: Sequence[Pattern], bundles: int, rng: np.random.Generator
) -> tuple[Process, ...]:
    own = rng.spawn(len(patterns))
    return tuple(process(one, bundles, its) for one, its in zip(patterns, own, strict=True))


def _stream(share: Share, rng: np.random.Generator) -> _Stream:
    return _Stream(share, _processes(share.load.patterns, len(share.msgs_in_per_s), rng))
