"""Patterns of load over time, as factors of base rates.

A pattern is evaluated once per step, at increasing times. Its factor is one number for the whole
load, or one for each of its bundles.
"""

import math
from typing import Final, Protocol, assert_never

import numpy as np

from loadmanager.core.columns import Mask
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.scenario.loads import (
    Burst,
    Daily,
    Flash,
    Growth,
    Jitter,
    Pattern,
    Steps,
    Trend,
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
        case Flash() | Trend() | Growth() | Steps():
            return _Planned(pattern)
        case _:
            assert_never(pattern)


class _Planned:
    def __init__(self, pattern: Flash | Trend | Growth | Steps) -> None:
        self._pattern = pattern

    def factor(self, now_s: float) -> float:
        match self._pattern:
            case Flash() as flash:
                return _flash(flash, now_s)
            case Trend(per_hour=per_hour, from_s=from_s):
                return max(0.0, 1.0 + per_hour * max(0.0, now_s - from_s) / _HOUR_S)
            case Growth(doubling_h=doubling_h):
                return float(2.0 ** (now_s / _HOUR_S / doubling_h))
            case Steps(at_s=at_s, factors=factors):
                passed = sum(at <= now_s for at in at_s)
                return factors[passed - 1] if passed else 1.0


def _flash(flash: Flash, now_s: float) -> float:
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
        kept = self._kept(now_s)
        self._state = kept * self._state + math.sqrt(1.0 - kept * kept) * drawn
        self._now_s = now_s
        return np.asarray(np.exp(self._sigma * self._state - self._sigma**2 / 2.0))

    def _kept(self, now_s: float) -> float:
        if self._now_s is None or self._memory_s == 0:
            return 0.0
        return math.exp(-(now_s - self._now_s) / self._memory_s)


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
