"""Months of brokers whose costs are known, made from the truth without any simulation."""

from dataclasses import dataclass

import numpy as np

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_fits import Ints
from loadmanager.pipeline.costs import Rows, Unit

MINUTES_PER_DAY = 1440
TRUE_COSTS = np.array(
    [
        # msgs in, msgs out, bytes in, bytes out, topics, connections
        [2.0e-3, 1.4e-3, 3.0e-7, 2.0e-7, 1.0e-1, 3.0e-2],  # percent of a core
        [8.0e-3, 8.0e-3, 0.0, 0.0, 2.0e-1, 1.0e-1],  # MiB
        [0.0, 1.0e-3, 2.0e-6, 2.0e-6, 0.0, 0.0],  # MiB
        [0.48, 0.0, 8.0e-3, 0.0, 0.0, 0.0],  # kbit/s
        [0.0, 0.48, 0.0, 8.0e-3, 0.0, 0.0],
    ]
)


@dataclass(frozen=True, kw_only=True)
class Month:
    """How a month is made.

    ``class_factors`` multiply all costs, one for each class of ``brokers`` brokers.
    ``usage_noise`` and ``rate_noise`` are fractions; ``wander`` is how far backgrounds
    stray, as a fraction of the mean usage, with a memory of ``wander_h``. ``odd`` of the
    minutes use up to twice as much. ``full`` is the percentile of usage at which CPU is
    exhausted; None for never.
    """

    seed: int = 1
    brokers: int = 6
    class_factors: tuple[float, ...] = (1.0,)
    bundles: int = 90
    days: int = 30
    step_minutes: int = 10
    moves_per_day: float = 8.0
    usage_noise: float = 0.02
    rate_noise: float = 0.01
    wander: float = 0.02
    wander_h: float = 3.0
    odd: float = 0.01
    full: float | None = None
    later_factor: float = 1.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Made:
    """The rows of a month, and the truth: ``costs`` (C, 5, 6), ``background`` (U, 5)."""

    rows: Rows
    units: list[Unit]
    costs: FloatArray
    background: FloatArray
    owner: Ints


def made(month: Month) -> Made:
    rng = np.random.default_rng(month.seed)
    units = month.brokers * len(month.class_factors)
    class_of = np.repeat(np.arange(len(month.class_factors)), month.brokers)
    steps = month.days * MINUTES_PER_DAY // month.step_minutes
    costs = TRUE_COSTS * np.asarray(month.class_factors)[:, None, None]
    traffic = _traffic(month, rng, steps)
    owner = _owners(month, rng, steps, units)
    observed = traffic * (1.0 + month.rate_noise * rng.standard_normal((steps, month.bundles, 1)))
    observed[:, :, 4:] = traffic[:, :, 4:]
    true_rates, rates = _gathered(traffic, owner, units), _gathered(observed, owner, units)
    work = np.einsum("tup,urp->tur", true_rates, costs[class_of])
    work[steps // 2 :] *= month.later_factor
    mean = work.mean(axis=(0, 1))
    background = rng.uniform(0.05, 0.3, (units, 5)) * mean
    keep = np.exp(-month.step_minutes / 60.0 / month.wander_h)
    usage = work + background + month.wander * _ar(rng, (steps, units, 5), keep) * mean
    usage *= 1.0 + month.usage_noise * rng.standard_normal(usage.shape)
    limit = np.broadcast_to(mean * 20.0, usage.shape).copy()
    if month.full is not None:
        limit[..., 0] = np.percentile(usage[..., 0], month.full) / 0.95
        top = limit * (1.0 + month.usage_noise * rng.standard_normal(usage.shape))
        usage = np.where(usage > limit, top, usage)
    usage *= 1.0 + (rng.random((steps, units, 1)) < month.odd) * rng.random((steps, units, 1))
    rows = _rows(rates, usage, limit, np.arange(steps) * month.step_minutes)
    return Made(
        rows=rows,
        units=[Unit("cluster", f"class {of}", f"b-{n}:8080") for n, of in enumerate(class_of)],
        costs=costs,
        background=background,
        owner=owner,
    )


def _rows(rates: FloatArray, usage: FloatArray, limit: FloatArray, minute: Ints) -> Rows:
    steps, units = rates.shape[:2]

    def flat(values: FloatArray) -> FloatArray:
        return np.swapaxes(values, 0, 1).reshape(steps * units, -1)

    return Rows(
        unit=np.repeat(np.arange(units), steps),
        minute=np.tile(minute, units),
        rates=flat(rates),
        usage=flat(usage),
        limit=flat(limit),
    )


def _traffic(month: Month, rng: np.random.Generator, steps: int) -> FloatArray:
    """(steps, bundles, 6): message sizes, fan-outs, days and noise are each bundle's own."""
    n = month.bundles
    hours = np.arange(steps) * month.step_minutes / 60.0
    msgs = 1000.0 * np.exp(0.8 * rng.standard_normal(n))
    size = np.exp(rng.uniform(np.log(100), np.log(4000), n))
    fan = rng.uniform(0.3, 3.0, n)
    phase = rng.uniform(-4, 4, n) + 14
    day = 1 + 0.5 * np.cos((hours[:, None] - phase) * 2 * np.pi / 24)
    jitter = np.exp(0.15 * _ar(rng, (steps, n), np.exp(-month.step_minutes / 60.0)))
    rate = msgs * day * jitter
    topics = rng.integers(2, 40, n).astype(float)
    sessions = topics * rng.uniform(1, 6, n).round()
    still = np.ones((steps, n))
    return np.stack(
        [rate, rate * fan, rate * size, rate * fan * size, still * topics, still * sessions], axis=2
    )


def _ar(rng: np.random.Generator, shape: tuple[int, ...], keep: float) -> FloatArray:
    draws = rng.standard_normal(shape)
    found = np.empty(shape)
    found[0] = draws[0]
    share = np.sqrt(1 - keep * keep)
    for at in range(1, shape[0]):
        found[at] = keep * found[at - 1] + share * draws[at]
    return found


def _owners(month: Month, rng: np.random.Generator, steps: int, units: int) -> Ints:
    owner = np.empty((steps, month.bundles), dtype=np.int64)
    now = rng.integers(0, units, month.bundles)
    chance = month.moves_per_day * month.step_minutes / MINUTES_PER_DAY
    for at in range(steps):
        for _ in range(rng.poisson(chance)):
            now[rng.integers(0, month.bundles)] = rng.integers(0, units)
        owner[at] = now
    return owner


def _gathered(traffic: FloatArray, owner: Ints, units: int) -> FloatArray:
    steps = len(owner)
    found = np.zeros((steps, units, 6))
    rows = np.arange(steps)[:, None]
    np.add.at(found, (rows, owner), traffic)
    return found
