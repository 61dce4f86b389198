"""Robust nonnegative regression of usage on rates, with the errors of whole blocks of rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import erfcx

from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.confidence import student_95

Ints = NDArray[np.int64]

PARTS: Final = 8
"""Blocks are divided into so many parts, between which and within which errors may differ."""

_HUBER: Final = 1.345
_BISQUARE: Final = 4.685
"""Tuning constants with 95 % efficiency for normal errors."""

_TURNS: Final = {"squares": 2, "huber": 6, "bisquare": 6}
"""Turns with each loss: Huber's converges from any start, Tukey's bisquare excludes outliers, such
as hours in which the host of a broker did other work."""

_SETTLED: Final = 1e-4
_MOST_PULL: Final = 3.0
_NEAR: Final = 3.0
_NORMAL_MEDIAN: Final = 0.6744897501960817
_BINS, _LEAST_OF_BIN = 20, 50
_RIDGE: Final = 1e-7
_SEEN: Final = 1e-9
_MOST_LEVERAGE: Final = 0.95
_LEAST_SPREAD: Final = 1e-4


@dataclass(frozen=True, eq=False, kw_only=True)
class Fit:
    """The terms of one class and resource, in scaled rates.

    ``costs`` (6,) are non-negative, ``free`` are unconstrained estimates with ``covariance``, whose
    pseudo-inverse is the square of ``root`` (r, 6). ``gram`` (6, 6) is the information of the rows,
    ``freedom`` blocks less terms. ``background`` is by number of the unit; ``idle`` has it with
    its variance. ``bins`` are levels of usage with the deviation of rows there; ``reach`` is the
    90th percentile of standardised errors.
    """

    costs: FloatArray
    free: FloatArray
    covariance: FloatArray
    root: FloatArray
    gram: FloatArray
    freedom: int
    background: FloatArray
    idle: Mapping[int, tuple[float, float]]
    bins: FloatArray
    reach: float

    def deviation(self, level: FloatArray) -> FloatArray:
        return _deviation(level, self.bins)


def fitted(x: FloatArray, usage: FloatArray, full_from: FloatArray, place: Ints) -> Fit:
    """Return the fit of rows (n, 6), in the order of the columns of ``place``: unit, block, part.

    Usage from ``full_from`` on is a lower bound: the score of such a row is that of a normal
    distribution censored there (Tobin 1958), and vanishes if the fit lies well above it.
    """
    unit, block, part = place.T
    weight, slope, target, bins, reach = _weighted(x, usage, full_from, numbered(unit))
    whole = numbered(unit, block)
    levels = [numbered(unit), whole, numbered(unit, block, part), np.arange(len(unit))]
    means = [group_means(one, weight, np.column_stack([x, target])) for one in levels]
    kinds = [finer[:, :-1] - coarser[:, :-1] for coarser, finer in pairwise(means)]
    around, rest = x - means[0][:, :-1], target - means[0][:, -1]
    grams = [kind.T @ (weight[:, None] * kind) for kind in kinds]
    sides = [kind.T @ (weight * rest) for kind in kinds]
    first = np.flatnonzero(np.diff(whole, prepend=-1))
    trust = np.ones(len(kinds))
    for _ in range(5):
        gram, side = (np.tensordot(trust, np.stack(one), 1) for one in (grams, sides))
        within, former = _Seen(gram), trust
        free = within.inverse @ side
        error = weight * (rest - around @ free)
        trust = np.array(
            [
                _agreement(_sums(whole, error[:, None] * kind), one, place[first, :2])
                for kind, one in zip(kinds, grams, strict=True)
            ]
        )
    together = np.tensordot(former, np.stack(kinds), 1) @ within.whitening
    scores, loaded = error[:, None] * together, weight[:, None] * together
    turned = around @ within.whitening
    leverage = np.stack([_sums(whole, loaded * one[:, None]) for one in turned.T], axis=2)
    spread = _spread(scores, _sums(whole, scores), leverage, place[first, :2])
    # Scores of robust rows grow by their slope, not by their weight.
    bread = float(weight.sum() / slope.sum())
    covariance = within.whitening @ spread @ within.whitening.T * bread**2
    root = np.linalg.cholesky(np.linalg.inv(spread)).T @ within.colouring.T / bread
    costs = nonnegative(gram, side)
    background, idle = np.zeros(int(unit[-1]) + 1), {}
    for start in np.flatnonzero(np.diff(unit, prepend=-1)).tolist():
        number, mean = int(unit[start]), means[0][start, :-1]
        background[number] = means[0][start, -1] - mean @ costs
        own = unit == number
        pulls = _sums(whole[own], (weight * (rest - around @ costs))[own])
        variance = float(pulls @ pulls) / float(weight[own].sum()) ** 2
        idle[number] = float(background[number]), variance + float(mean @ covariance @ mean)
    return Fit(
        costs=costs,
        free=free,
        covariance=covariance,
        root=root,
        gram=gram,
        freedom=max(int(whole[-1]) + 1 - x.shape[1], 1),
        background=background,
        idle=idle,
        bins=bins,
        reach=reach,
    )


def _agreement(scores: FloatArray, gram: FloatArray, place: Ints) -> float:
    """Return the weight of a kind of variation: the inverse of how far its blocks disagree."""
    whitened = scores @ _Seen(gram).whitening
    off = float(np.trace(_together(whitened, place))) / max(whitened.shape[1], 1)
    return 1.0 / off if off > 0 else 0.0


class _Seen:
    """Square roots of a matrix and of its inverse in the directions that it determines."""

    def __init__(self, gram: FloatArray) -> None:
        size = np.sqrt(np.maximum(np.diag(gram), 0.0))
        scale = np.where(size > 0, size, 1.0)
        values, vectors = np.linalg.eigh(gram / np.outer(scale, scale))
        seen = values > _SEEN * max(float(values.max()), 1e-300)
        self.whitening = vectors[:, seen] / np.sqrt(values[seen]) / scale[:, None]
        self.colouring = vectors[:, seen] * np.sqrt(values[seen]) * scale[:, None]
        self.inverse = self.whitening @ self.whitening.T


def _together(scores: FloatArray, place: Ints) -> FloatArray:
    """Return the covariance of the scores of blocks, of which ``place`` has unit and block.

    Blocks of a broker up to two apart may be correlated, the less the further they are from each
    other (Newey and West 1987).
    """
    spread = scores.T @ scores
    for lag, share in ((1, 2 / 3), (2, 1 / 3)):
        beside = (place[lag:] - place[:-lag] == (0, lag)).all(axis=1)
        both = scores[lag:][beside].T @ scores[:-lag][beside]
        spread += (both + both.T) * share
    return np.asarray(spread)


def _spread(scores: FloatArray, sums: FloatArray, leverage: FloatArray, place: Ints) -> FloatArray:
    """Return the covariance of the whitened scores of blocks, of rows and of blocks.

    Rows of a block are not independent, but blocks nearly are (a cluster-robust covariance, Liang
    and Zeger 1986). A block with high ``leverage`` has drawn the fit towards itself; its score is
    taken as if the fit had been made without it (as by a jackknife). Blocks that agree better than
    rows would do so by chance.
    """
    leverage, vectors = np.linalg.eigh((leverage + np.swapaxes(leverage, 1, 2)) / 2)
    rest = 1.0 - np.clip(leverage, 0.0, _MOST_LEVERAGE)
    alone = np.einsum("bij,bj->bi", vectors, np.einsum("bij,bi->bj", vectors, sums) / rest)
    spread = _together(alone, place)
    own = np.diag(spread)
    factor = np.sqrt(
        np.maximum(np.square(scores).sum(axis=0) / np.where(own > 0, own, np.inf), 1.0)
    )
    return np.asarray(spread * np.outer(factor, factor) + _LEAST_SPREAD * np.eye(len(own)))


def _weighted(
    x: FloatArray, usage: FloatArray, full_from: FloatArray, unit: Ints
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray, float]:
    """Return weights of rows, their slopes, what rows aim at, and bins and reach of errors.

    An iteratively reweighted fit. Rows are weighted by the usual error of rows of such a load. A
    full row aims at where its likelihood leads; one that is full in spite of little traffic counts
    for nothing in the end, because another process used the host.
    """
    ones, full = np.ones(len(usage)), usage >= full_from
    level = group_means(unit, ones, usage[:, None])[:, 0]
    peak = float(usage.mean() + 3.0 * usage.std())
    spread = max(float(np.sqrt(np.mean(np.square(usage - level)))), peak * 1e-4, 1e-13)
    bins = np.array([[peak, spread]])
    weight = slope = target = ones
    reach = 2.0
    for loss, turns in _TURNS.items():
        for _ in range(turns):
            deviation = _deviation(level, bins)
            off = (usage - level) / deviation
            weight, slope = _losses(loss, off)
            short = (full_from[full] - level[full]) / deviation[full]
            # The mean of a normal variable above a value, the inverse Mills ratio.
            force = np.sqrt(2.0 / np.pi) / erfcx(short / np.sqrt(2.0))
            bend = np.clip(force * (force - short), 1e-12, 1.0)
            damped = np.minimum(1.0, _MOST_PULL / np.maximum(force, 1e-300))
            counted, steep = _losses(loss, force) if loss == "bisquare" else (damped, damped)
            weight[full], slope[full] = bend * counted, bend * steep
            target = usage.copy()
            target[full] = level[full] + deviation[full] * force / bend
            weight, slope = weight / deviation**2, slope / deviation**2
            means = group_means(unit, weight, np.column_stack([x, target]))
            around = x - means[:, :-1]
            loaded = weight[:, None] * around
            costs = nonnegative(around.T @ loaded, loaded.T @ target)
            former, level = level, means[:, -1] + around @ costs
            # Near the limit only what is below the fit is measured whole.
            seen = np.where(usage < level, 0.0, _NEAR * deviation)
            clear = level + seen < full_from
            bins, reach = _errors(level[clear], np.abs(usage - level)[clear], peak, bins, reach)
            if float(np.abs(level - former).max()) < _SETTLED * peak:
                break
    return weight, slope, target, bins, reach


def _losses(loss: str, off: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return weights of standardised errors, and slopes: the derivative of weight times error."""
    if loss == "squares":
        return np.ones_like(off), np.ones_like(off)
    size = np.abs(off)
    if loss == "huber":
        return _HUBER / np.maximum(size, _HUBER), (size <= _HUBER).astype(np.float64)
    share = np.square(off / _BISQUARE)
    rest = np.maximum(1.0 - share, 0.0)
    return rest * rest, np.where(share < 1.0, rest * (1.0 - 5.0 * share), 0.0)


def _errors(
    level: FloatArray, error: FloatArray, peak: float, bins: FloatArray, reach: float
) -> tuple[FloatArray, float]:
    """Return the usual errors of rows by their level, and the reach of nine in ten of them."""
    if len(level) < _LEAST_OF_BIN:
        return bins, reach
    parts = np.array_split(np.argsort(level), min(_BINS, len(level) // _LEAST_OF_BIN))
    found = np.array(
        [
            (np.median(level[part]), max(np.median(error[part]) / _NORMAL_MEDIAN, peak * 1e-4))
            for part in parts
        ]
    )
    return found, float(np.quantile(error / _deviation(level, found), 0.9))


def _deviation(level: FloatArray, bins: FloatArray) -> FloatArray:
    """Return the usual error at a level; above all known ones it grows with the level."""
    found = np.interp(level, bins[:, 0], bins[:, 1])
    return np.asarray(found * np.maximum(level / max(float(bins[-1, 0]), 1e-300), 1.0))


def numbered(*keys: Ints) -> Ints:
    """Return the number of the group of each row, for rows that are sorted by some keys."""
    changed = np.any([key[1:] != key[:-1] for key in keys], axis=0)
    return np.concatenate([[0], np.cumsum(changed)]).astype(np.int64)


def _sums(group: Ints, values: FloatArray) -> FloatArray:
    starts = np.flatnonzero(np.diff(group, prepend=-1))
    return np.asarray(np.add.reduceat(values, starts, axis=0))


def group_means(group: Ints, weight: FloatArray, values: FloatArray) -> FloatArray:
    """Return the weighted mean of the group of each row, (n, m)."""
    total = np.maximum(_sums(group, weight[:, None]), 1e-300)
    return np.asarray((_sums(group, weight[:, None] * values) / total)[group])


def nonnegative(gram: FloatArray, side: FloatArray) -> FloatArray:
    """Return the ``x >= 0`` that minimises ``x'Gx / 2 - side'x``; collinear terms share."""
    size = np.sqrt(np.maximum(np.diag(gram), 0.0))
    safe = np.where(size > 0, size, 1.0)
    ridge = np.diag(np.where(size > 0, _RIDGE, 1.0))
    upper = np.linalg.cholesky(gram / np.outer(safe, safe) + ridge).T
    aim = np.linalg.solve(upper.T, np.where(size > 0, side / safe, 0.0))
    return np.asarray(nnls(upper, aim)[0] / safe)


def interval(
    term: int, free: FloatArray, root: FloatArray, most: float, freedom: int
) -> tuple[float, float]:
    """Return the 90 % interval of one term: the values that agree with the rows.

    All other terms take their best non-negative values (a profile interval), so two terms that
    cannot be separated get intervals from 0 to the cost of both together. ``root`` is a square root
    of the inverse of the covariance of ``free``. ``most`` is the upper bound of the term.
    """
    own = root[:, term]
    if not own.any():
        return 0.0, most
    others = np.delete(root, term, axis=1)
    size = np.sqrt(np.square(others).sum(axis=0))
    others = np.vstack([others, 1e-4 * np.diag(np.where(size > 0, size, 1.0))])

    def distance(value: float) -> float:
        aim = np.concatenate([root @ free - own * value, np.zeros(len(size))])
        return float(nnls(others, aim)[1]) ** 2

    whole = np.vstack([root, 1e-4 * np.diag(np.sqrt(np.square(root).sum(axis=0)))])
    best = min(
        float(nnls(whole, np.concatenate([root @ free, np.zeros(len(free))]))[0][term]), most
    )
    allowed = distance(best) + student_95(freedom) ** 2

    def edge(inside: float, outside: float) -> float:
        if distance(outside) <= allowed:
            return outside
        for _ in range(30):
            middle = (inside + outside) / 2.0
            inside, outside = (middle, outside) if distance(middle) <= allowed else (inside, middle)
        return (inside + outside) / 2.0

    return edge(best, 0.0), edge(best, most)
