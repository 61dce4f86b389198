"""The bundles and topics of a scenario, and the demand for them at each moment.

Topics have names that are hashed like in a broker into bundle ranges, so the distribution of topics
over bundles is as uneven as in a cluster. The demand is base rates times patterns, plus recorded
rates. A pattern is evaluated once per step, at increasing times.
"""

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.bundles import Boundaries
from loadmanager.core.columns import Indices, Mask
from loadmanager.core.hashing import crc32
from loadmanager.core.ids import BundleId, Namespace, parse_full_topic
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Topics:
    """All K bundles of a scenario and their topics.

    ``namespaces`` has the rows of each namespace's bundles, which are contiguous in the
    order of their ranges. ``traced`` is the bundle row of each topic of the trace.
    """

    bundles: tuple[BundleId, ...]
    namespaces: Mapping[Namespace, slice]
    topics: Counts
    producers: Counts
    consumers: Counts
    shares: tuple[Share, ...]
    traced: Indices

    @classmethod
    def of(
        cls,
        loads: Sequence[Load],
        traced: Sequence[str],
        traced_bundles: int,
        rng: np.random.Generator,
    ) -> "Topics":
        """Return the topics of loads and of a trace; ``rng`` draws their sizes.

        Namespaces that are only in the trace have ``traced_bundles`` each. A topic of the trace
        has one producer and one consumer.
        """
        counts: dict[Namespace, int] = {}
        for load in loads:
            counts.setdefault(load.namespace, load.bundles)
        for topic in traced:
            counts.setdefault(parse_full_topic(topic).namespace, traced_bundles)
        cut = {name: Boundaries.even(name, count) for name, count in counts.items()}
        rows: dict[Namespace, slice] = {}
        start = 0
        for namespace, count in counts.items():
            rows[namespace] = slice(start, start + count)
            start += count
        found = []
        for topic in traced:
            namespace = parse_full_topic(topic).namespace
            bounds, last = cut[namespace].bounds, len(cut[namespace].bundles)
            inner = bisect_right(bounds, crc32(topic), 1, last)
            found.append(int(rows[namespace].start) + inner - 1)
        traced_rows = np.array(found, dtype=np.intp)
        topics = np.bincount(traced_rows, minlength=sum(counts.values())).astype(np.int64)
        clients = np.stack([topics, topics]).astype(np.float64)
        shares = []
        first = dict.fromkeys(cut, 0)
        for load in loads:
            name = load.namespace
            share = _share(load, cut[name], rows[name], first[name], rng)
            first[name] += load.topics
            shares.append(share)
            topics[share.rows] += share.topics
            each = [share.load.producers_per_topic, share.load.consumers_per_topic]
            clients[:, share.rows] += np.outer(each, share.topics)
        producers, consumers = np.rint(clients).astype(np.int64)
        return cls(
            bundles=tuple(bundle for bounds in cut.values() for bundle in bounds.bundles),
            namespaces=rows,
            topics=topics,
            producers=producers,
            consumers=consumers,
            shares=tuple(shares),
            traced=traced_rows,
        )


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


class Process(Protocol):
    def factor(self, now_s: float) -> Factor:
        """Return the factor at ``now_s``, which never decreases."""


def process(pattern: Pattern, bundles: int, rng: np.random.Generator) -> Process:
    match pattern:
        case Daily():
            return _Tide(pattern, bundles, rng)
        case Jitter():
            return _Noise(pattern, bundles, rng)
        case Burst():
            return _Bursts(pattern, bundles, rng)
    return _Planned(pattern)


class _Planned:
    def __init__(self, pattern: Flash | Trend | Growth | Steps) -> None:
        self._pattern = pattern

    def factor(self, now_s: float) -> float:
        match self._pattern:
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


class _Tide:
    """A daily or weekly cycle; the peaks of bundles may differ."""

    def __init__(self, tide: Daily, bundles: int, rng: np.random.Generator) -> None:
        self._amplitude = tide.amplitude
        self._turns_per_s = 2.0 * math.pi / _PERIODS_S[tide.kind]
        peak_s = tide.peak_h * _HOUR_S
        spread_s = tide.spread_h * _HOUR_S
        self._phase: Factor = peak_s * self._turns_per_s
        if spread_s > 0:
            drawn_s = rng.uniform(-spread_s, spread_s, bundles)
            self._phase = (peak_s + drawn_s) * self._turns_per_s

    def factor(self, now_s: float) -> Factor:
        turn = now_s * self._turns_per_s
        if isinstance(self._phase, float):
            return 1.0 + self._amplitude * math.cos(turn - self._phase)
        return np.asarray(1.0 + self._amplitude * np.cos(turn - self._phase), dtype=np.float64)


class _Noise:
    """Log-normal noise with mean 1 whose logarithm decays by 1/e each ``memory_s``."""

    def __init__(self, jitter: Jitter, bundles: int, rng: np.random.Generator) -> None:
        self._sigma = math.sqrt(math.log1p(jitter.fraction**2))
        self._memory_s = jitter.memory_s
        self._rng = rng
        self._now_s: float | None = None
        self._state = np.zeros(bundles if jitter.each == "bundle" else 1)

    def factor(self, now_s: float) -> Factor:
        drawn = self._rng.standard_normal(len(self._state))
        kept = 0.0
        if self._now_s is not None and self._memory_s > 0:
            kept = math.exp(-(now_s - self._now_s) / self._memory_s)
        self._state = kept * self._state + math.sqrt(1.0 - kept * kept) * drawn
        self._now_s = now_s
        return np.asarray(np.exp(self._sigma * self._state - self._sigma**2 / 2.0))


class _Bursts:
    """On and off: on for a fixed time, off for exponential times, with a random initial phase."""

    def __init__(self, burst: Burst, bundles: int, rng: np.random.Generator) -> None:
        count = bundles if burst.each == "bundle" else 1
        self._rng = rng
        self._more = burst.factor - 1.0
        self._length_s = burst.length_s
        self._off_s = max(burst.every_s - burst.length_s, 0.0)
        share = burst.length_s / max(burst.every_s, burst.length_s)
        self._on: Mask = rng.random(count) < share
        rest_s = rng.random(count) * burst.length_s
        self._until_s = np.where(self._on, rest_s, rng.exponential(self._off_s, count))

    def factor(self, now_s: float) -> Factor:
        if self._off_s == 0:
            return 1.0 + self._more
        while (due := np.flatnonzero(self._until_s <= now_s)).size:
            begins = ~self._on[due]
            lasts_s = np.where(begins, self._length_s, self._rng.exponential(self._off_s, due.size))
            self._on[due] = begins
            self._until_s[due] += lasts_s
        factor = 1.0 + self._more * self._on
        return np.asarray(factor, dtype=np.float64)


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
        factor = factor * each.factor(now_s)
    return np.reshape(factor, (-1, 1))


def _processes(
    patterns: Sequence[Pattern], bundles: int, rng: np.random.Generator
) -> tuple[Process, ...]:
    own = rng.spawn(len(patterns))
    return tuple(process(one, bundles, its) for one, its in zip(patterns, own, strict=True))
