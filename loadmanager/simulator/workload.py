"""The bundles and topics of a scenario, and the demand for them at each moment.

Topics have names that are hashed like in a broker into bundle ranges, so the distribution of topics
over bundles is as uneven as in a cluster. The demand is base rates times patterns, plus recorded
rates. A pattern is evaluated once per step, at increasing times.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.bundles import Boundaries
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.hashing import crc32
from loadmanager.core.ids import Namespace, parse_full_topic
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.scenario import (
    Burst,
    Daily,
    Even,
    Flash,
    Growth,
    Hot,
    Jitter,
    Load,
    LogNormal,
    Pattern,
    Skew,
    Steps,
    Trend,
    Zipf,
)
from loadmanager.simulator.traces import Trace

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Share:
    """The part of one load in each bundle of its namespace, before patterns.

    ``rows`` are the rows of the bundles, ``topics`` the number of topics in each. ``profile`` are
    the rates per message in: messages in (1), messages out, bytes in and bytes out.
    """

    load: Load
    rows: slice
    topics: Counts
    msgs_in_per_s: FloatArray
    profile: FloatArray


class Topics:
    """All K bundles of a scenario and their topics.

    ``namespaces`` has the rows of each namespace's bundles, which are contiguous in the
    order of their ranges. ``traced`` is the bundle row of each topic of the trace.
    """

    def __init__(
        self,
        loads: Sequence[Load],
        traced: Sequence[str],
        traced_bundles: int,
        rng: np.random.Generator,
    ) -> None:
        """Spread the topics of loads and of a trace over bundles; ``rng`` draws their sizes.

        Namespaces that are only in the trace have ``traced_bundles`` each. A topic of the trace
        has one producer and one consumer.
        """
        counts: dict[Namespace, int] = {}
        for load in loads:
            counts.setdefault(load.namespace, load.bundles)
        for topic in traced:
            counts.setdefault(parse_full_topic(topic).namespace, traced_bundles)
        cut = {name: Boundaries.even(name, count) for name, count in counts.items()}
        starts = accumulate(counts.values(), initial=0)
        rows = {
            namespace: slice(start, start + count)
            for (namespace, count), start in zip(counts.items(), starts, strict=False)
        }
        found = []
        for topic in traced:
            namespace = parse_full_topic(topic).namespace
            bounds, last = cut[namespace].bounds, len(cut[namespace].bundles)
            inner = bisect_right(bounds, crc32(topic), 1, last)
            found.append(int(rows[namespace].start) + inner - 1)
        self.traced: Indices = np.array(found, dtype=np.intp)
        self.topics: Counts = np.bincount(self.traced, minlength=sum(counts.values()))
        clients = np.stack([self.topics, self.topics]).astype(np.float64)
        self.shares: list[Share] = []
        first = dict.fromkeys(cut, 0)
        for load in loads:
            name = load.namespace
            share = _share(load, cut[name], rows[name], first[name], rng)
            first[name] += load.topics
            self.shares.append(share)
            self.topics[share.rows] += share.topics
            each = [load.producers_per_topic, load.consumers_per_topic]
            clients[:, share.rows] += np.outer(each, share.topics)
        self.producers, self.consumers = np.rint(clients).astype(np.int64)
        self.bundles = tuple(bundle for bounds in cut.values() for bundle in bounds.bundles)
        self.namespaces: Mapping[Namespace, slice] = rows


def topic_positions(namespace: Namespace, first: int, count: int) -> Counts:
    """Return the hashes of the topics ``persistent://{namespace}/topic-{first}`` and so on."""
    prefix = f"persistent://{namespace}/topic-"
    numbers = range(first, first + count)
    return np.fromiter((crc32(f"{prefix}{n}") for n in numbers), dtype=np.int64, count=count)


def weights(skew: Skew, count: int, rng: np.random.Generator) -> FloatArray:
    match skew:
        case Even():
            drawn = np.ones(count)
        case Zipf(exponent=exponent):
            drawn = rng.permutation(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
        case LogNormal(sigma=sigma):
            drawn = rng.lognormal(sigma=sigma, size=count)
        case Hot(topics=hot, share=share):
            if hot >= count:
                return np.full(count, 1.0 / count)
            found = np.full(count, (1.0 - share) / (count - hot))
            found[rng.choice(count, size=hot, replace=False)] = share / hot
            return found
    return np.asarray(drawn / drawn.sum())


def _share(load: Load, cut: Boundaries, rows: slice, first: int, rng: np.random.Generator) -> Share:
    """Return the parts of ``load`` in bundles; its topics are numbered from ``first`` on."""
    bundles = len(cut.bundles)
    if load.over == "topics":
        inner = np.array(cut.bounds[1:-1], dtype=np.int64)
        row = np.searchsorted(
            inner, topic_positions(load.namespace, first, load.topics), side="right"
        )
        own: Counts = np.bincount(row, minlength=bundles).astype(np.int64)
        drawn = weights(load.skew, load.topics, rng)
        portion = np.bincount(row, drawn, minlength=bundles).astype(np.float64)
    else:
        own = np.diff(np.arange(bundles + 1, dtype=np.int64) * load.topics // bundles)
        portion = np.zeros(bundles, dtype=np.float64)
        having = np.flatnonzero(own)
        portion[having] = weights(load.skew, len(having), rng)
    size, fan_out = load.message_bytes, load.fan_out
    return Share(
        load=load,
        rows=rows,
        topics=own,
        msgs_in_per_s=load.msgs_in_per_s * portion,
        profile=np.array([1.0, fan_out, size, size * fan_out]),
    )


Factor = float | FloatArray

_HOUR_S: Final = 3600.0
_PERIODS_S: Final = {"day": 24 * _HOUR_S, "week": 168 * _HOUR_S}


Process = Callable[[float], Factor]
"""Returns the factor at a time, which never decreases."""


def process(pattern: Pattern, bundles: int, rng: np.random.Generator) -> Process:
    match pattern:
        case Daily():
            return _tide(pattern, bundles, rng)
        case Jitter():
            return _noise(pattern, bundles, rng)
        case Burst():
            return _bursts(pattern, bundles, rng)
    return partial(_planned, pattern)


def _planned(pattern: Flash | Trend | Growth | Steps, now_s: float) -> float:
    match pattern:
        case Flash() as flash:
            up_s = flash.at_s + flash.rise_s
            down_s = up_s + flash.hold_s
            if now_s < flash.at_s or now_s >= down_s + flash.fall_s:
                return 1.0
            if now_s < up_s:
                part = (now_s - flash.at_s) / flash.rise_s
            elif now_s < down_s or flash.fall_s == 0:
                part = 1.0
            else:
                part = 1.0 - (now_s - down_s) / flash.fall_s
            return 1.0 + (flash.factor - 1.0) * part
        case Trend(per_hour=per_hour, from_s=from_s):
            return max(0.0, 1.0 + per_hour * max(0.0, now_s - from_s) / _HOUR_S)
        case Growth(doubling_h=doubling_h):
            return float(2.0 ** (now_s / _HOUR_S / doubling_h))
        case Steps(at_s=at_s, factors=factors):
            passed = sum(at <= now_s for at in at_s)
            return factors[passed - 1] if passed else 1.0


def _tide(tide: Daily, bundles: int, rng: np.random.Generator) -> Process:
    """A daily or weekly cycle; the peaks of bundles may differ."""
    turns_per_s = 2.0 * math.pi / _PERIODS_S[tide.kind]
    peak_s, spread_s = tide.peak_h * _HOUR_S, tide.spread_h * _HOUR_S
    if spread_s == 0:
        phase = peak_s * turns_per_s
        return lambda now_s: 1.0 + tide.amplitude * math.cos(now_s * turns_per_s - phase)
    phases = (peak_s + rng.uniform(-spread_s, spread_s, bundles)) * turns_per_s
    return lambda now_s: np.asarray(1.0 + tide.amplitude * np.cos(now_s * turns_per_s - phases))


def _noise(jitter: Jitter, bundles: int, rng: np.random.Generator) -> Process:
    """Log-normal noise with mean 1 whose logarithm decays by 1/e each ``memory_s``."""
    sigma = math.sqrt(math.log1p(jitter.fraction**2))
    state = np.zeros(bundles if jitter.each == "bundle" else 1)
    last_s = -math.inf

    def factor(now_s: float) -> Factor:
        nonlocal state, last_s
        drawn = rng.standard_normal(len(state))
        kept = math.exp((last_s - now_s) / jitter.memory_s) if jitter.memory_s > 0 else 0.0
        state = kept * state + math.sqrt(1.0 - kept * kept) * drawn
        last_s = now_s
        return np.asarray(np.exp(sigma * state - sigma**2 / 2.0))

    return factor


def _bursts(burst: Burst, bundles: int, rng: np.random.Generator) -> Process:
    """On and off: on for a fixed time, off for exponential times, with a random initial phase."""
    count = bundles if burst.each == "bundle" else 1
    more, off_s = burst.factor - 1.0, burst.every_s - burst.length_s
    if off_s <= 0:
        return lambda _: 1.0 + more
    on: Mask = rng.random(count) < burst.length_s / burst.every_s
    rest_s = rng.random(count) * burst.length_s
    until_s = np.where(on, rest_s, rng.exponential(off_s, count))

    def factor(now_s: float) -> Factor:
        while (due := np.flatnonzero(until_s <= now_s)).size:
            begins = ~on[due]
            until_s[due] += np.where(begins, burst.length_s, rng.exponential(off_s, due.size))
            on[due] = begins
        return np.asarray(1.0 + more * on)

    return factor


class Workload:
    """The demanded rates of all bundles, step by step; those of the trace are added.

    Each pattern of each load has its own generator. Rates of the trace are ``interpolated`` between
    rows or hold, and are multiplied by ``trace_patterns``.
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
        self._nothing = np.zeros((len(topics.bundles), 4))
        # Usually of the current row and of the next one.
        self._row = lru_cache(maxsize=2)(self._rates_of)
        self._shift = np.ones((len(topics.bundles), 1))
        self._streams = [
            (share, _processes(share.load.patterns, len(share.msgs_in_per_s), rng))
            for share in topics.shares
        ]
        self._trace_processes = _processes(trace_patterns, len(topics.bundles), rng)

    def shift(self, namespace: Namespace, factor: float) -> None:
        self._shift[self._topics.namespaces[namespace]] *= factor

    def at(self, now_s: float) -> FloatArray:
        """Return the demanded rates (K, 4); ``now_s`` never decreases."""
        rates = self._replayed(now_s) * _factor(self._trace_processes, now_s)
        for share, processes in self._streams:
            msgs_in_per_s = share.msgs_in_per_s[:, np.newaxis] * _factor(processes, now_s)
            rates[share.rows] += msgs_in_per_s * share.profile
        return np.multiply(rates, self._shift, out=rates)

    def _replayed(self, now_s: float) -> FloatArray:
        """Return the rates of the trace at ``now_s``, which are 0 before its first row."""
        if self._trace is None:
            return self._nothing
        times_s = self._trace.times_s
        number = int(np.searchsorted(times_s, now_s, side="right")) - 1
        if number < 0:
            return self._nothing
        now = self._row(number)
        if not self._interpolated or number == len(times_s) - 1:
            return now
        passed = (now_s - times_s[number]) / (times_s[number + 1] - times_s[number])
        return np.asarray(now + passed * (self._row(number + 1) - now))

    def _rates_of(self, number: int) -> FloatArray:
        assert self._trace is not None  # noqa: S101 - the caller has looked
        columns = [
            np.bincount(self._topics.traced, column, minlength=len(self._nothing))
            for column in self._trace.rates[number].T
        ]
        return np.stack(columns, axis=1)


def _factor(processes: Iterable[Process], now_s: float) -> FloatArray:
    factor: Factor = 1.0
    for each in processes:
        factor = factor * each(now_s)
    return np.reshape(factor, (-1, 1))


def _processes(
    patterns: Sequence[Pattern], bundles: int, rng: np.random.Generator
) -> tuple[Process, ...]:
    own = rng.spawn(len(patterns))
    return tuple(process(one, bundles, its) for one, its in zip(patterns, own, strict=True))
