"""The uncertainty of a fit, from the covariance of the scores of blocks.

Errors of neighbouring minutes are correlated, and a background drifts for hours: rows are not
independent, but blocks nearly are (a cluster-robust covariance, Liang and Zeger 1986). Variation is
divided by scale: ``between`` blocks (usually days of a broker), ``within`` a block, and around
``moves``. Each kind determines the costs by itself, weighted by the agreement of its blocks: a
background that drifts from day to day only reduces the weight of what was learned from days.
Neighbouring blocks of a broker may be correlated; their products count by half (Newey and West
1987). A block with high leverage has drawn the fit towards itself; its score is taken as if the
fit had been made without it (as by a jackknife). A *pull* below is the score of a row or
block: the derivative of its log-likelihood.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from loadmanager.core.columns import Indices
from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.normal_equations import RowFit, State, row_fit
from loadmanager.pipeline.cost_model.row_statistics import RowStatistics
from loadmanager.pipeline.cost_model.rows import (
    FITS,
    RATE_COUNT,
    RESOURCE_COUNT,
    Rows,
    Source,
    Summing,
    by_block,
    by_unit,
)

KINDS: Final = ("between", "within", "moves")
WIDTH: Final = len(KINDS) * RATE_COUNT

_LEAST_INFORMATION: Final = 1e-9
"""Directions with less than this part of the largest eigenvalue are undetermined."""

_MOST_LEVERAGE: Final = 0.95
_LEAST_SPREAD: Final = 1e-6
"""Whitened scores have variance 1 if errors are as expected; data without errors would give 0."""


@dataclass(frozen=True, eq=False)
class Middles:
    """Weights of units (U, F, 5), and weighted means of scaled, centred rates (U, F, 5, 6)."""

    weight: FloatArray
    rates: FloatArray


class Closing(NamedTuple):
    """The information of the rows of each kind at the final fit, (C, F, 5, 3, 6, 6).

    ``slopes`` are second derivatives; ``roots`` whiten the scores of a kind.
    """

    middles: Middles
    slopes: FloatArray
    roots: FloatArray


class Pulls(NamedTuple):
    """Sums of the whitened scores of blocks.

    ``total`` (C, F, 5, 18) is 0 if the fit is optimal for a kind by itself. ``spread``
    (C, F, 5, 18, 18) are the products of scores. ``unit`` (U, F, 5, 19) are the products of the
    score at the background of a unit with these, and its square. ``independent`` (C, F, 5, 18)
    is the diagonal of ``spread`` for independent rows, its lower bound. ``blocks`` (C, F, 5)
    are counts.
    """

    total: FloatArray
    spread: FloatArray
    unit: FloatArray
    independent: FloatArray
    blocks: FloatArray


def closing(source: Source, statistics: RowStatistics, state: State) -> Closing:
    """Return the information of each kind of rows at the final fit, in two passes."""
    first = source.sums(_middles_pass(statistics, state))
    empty = np.zeros((len(FITS), RESOURCE_COUNT, 1 + RATE_COUNT))
    own = np.stack([first.get(unit, empty) for unit in range(len(statistics.class_of))])
    weight = own[..., 0]
    middles = Middles(weight, own[..., 1:] / np.where(weight > 0, weight, 1.0)[..., np.newaxis])
    sums = source.sums(_slopes_pass(statistics, state, middles))
    slopes = np.stack([sums[-1 - number] for number in range(statistics.classes)])
    roots = np.empty_like(slopes)
    for place in np.ndindex(slopes.shape[:4]):
        roots[place] = _root(slopes[place])
    return Closing(middles, slopes, roots)


def pulls(source: Source, statistics: RowStatistics, state: State, closed: Closing) -> Pulls:
    """Return the sums of the scores of blocks at the final fit, in one pass."""
    sums = source.sums(_pulls_pass(statistics, state, closed))
    classes = np.stack([sums[-1 - number] for number in range(statistics.classes)])
    empty = np.zeros((len(FITS), RESOURCE_COUNT, WIDTH + 1))
    unit = np.stack([sums.get(unit, empty) for unit in range(len(statistics.class_of))])
    spread, (total, independent, blocks) = (
        classes[..., :WIDTH],
        np.moveaxis(classes[..., WIDTH:], -1, 0),
    )
    return Pulls(total, spread, unit, independent, blocks[..., 0])


def _root(slopes: FloatArray) -> FloatArray:
    """Return the square root of the inverse of ``slopes``, 0 in undetermined directions."""
    size = np.sqrt(np.maximum(np.diag(slopes), 0.0))
    scale = np.where(size > 0, size, 1.0)
    values, vectors = np.linalg.eigh(slopes / np.outer(scale, scale))
    known = values > _LEAST_INFORMATION * max(float(values.max()), 1e-300)
    safe = np.where(known, values, 1.0)
    return np.where(known[:, None], (vectors / scale[:, None] / np.sqrt(safe)).T, 0.0)


def _middles_pass(statistics: RowStatistics, state: State) -> Summing:
    def summing(batches: Iterator[Rows]) -> Iterator[tuple[int, FloatArray]]:
        for unit, rows in by_unit(batches):
            fits = [row_fit(rows, statistics, unit, state, part) for part in range(len(FITS))]
            yield unit, np.stack([(one.slope * one.design[:, :1]).T @ one.design for one in fits])

    return summing


def _slopes_pass(statistics: RowStatistics, state: State, middles: Middles) -> Summing:
    def summing(batches: Iterator[Rows]) -> Iterator[tuple[int, FloatArray]]:
        for unit, rows in by_block(batches):
            yield (
                -1 - int(statistics.class_of[unit]),
                _Block(rows, statistics, unit, state, middles).slopes,
            )

    return summing


def _pulls_pass(statistics: RowStatistics, state: State, closed: Closing) -> Summing:
    """Return a pass that gives each class (F, 5, 18, 21) and each unit (F, 5, 19)."""

    def summing(batches: Iterator[Rows]) -> Iterator[tuple[int, FloatArray]]:
        former, former_place = np.zeros(0), (-1, -1)
        for unit, rows in by_block(batches):
            number, place = int(statistics.class_of[unit]), (unit, int(rows.block[0]))
            block = _Block(rows, statistics, unit, state, closed.middles)
            pulled = block.whitened(closed.roots[number])
            stacked = np.concatenate([pulled, block.level[..., None]], axis=-1)
            products = stacked[..., :, None] * stacked[..., None, :]
            if former_place == (unit, place[1] - 1):
                beside = stacked[..., :, None] * former[..., None, :]
                products += (beside + np.swapaxes(beside, -1, -2)) / 2.0
            former, former_place = stacked, place
            roots = closed.roots[number]
            others = (
                block.whitened(roots, alone=True),
                block.independent(roots),
                np.any(stacked != 0.0, axis=-1, keepdims=True) * np.ones(WIDTH),
            )
            columns = [one[..., None] for one in others]
            yield -1 - number, np.concatenate([products[..., :-1, :-1], *columns], axis=-1)
            yield unit, products[..., -1, :]

    return summing


class _Block:
    """One block of one unit: its slopes and scores for all fits, resources and kinds.

    ``slopes`` are (F, 5, 3, 6, 6), the scores ``pulled`` (F, 5, 3, 6); ``level`` (F, 5) is the
    score at the background of the unit.
    """

    def __init__(
        self, rows: Rows, statistics: RowStatistics, unit: int, state: State, middles: Middles
    ) -> None:
        shape = (len(FITS), RESOURCE_COUNT)
        self.slopes = np.zeros((*shape, len(KINDS), RATE_COUNT, RATE_COUNT))
        self.pulled = np.zeros((*shape, len(KINDS), RATE_COUNT))
        self._squares = np.zeros_like(self.slopes)
        self.level = np.zeros(shape)
        minutes = np.flatnonzero(rows.level)
        moved = np.flatnonzero(~rows.level)
        for part in range(len(FITS)):
            one = row_fit(rows, statistics, unit, state, part)
            for resource in range(RESOURCE_COUNT):
                middle = middles.rates[unit, part, resource]
                self._add_minutes(one, minutes, middle, part, resource)
                if len(moved):
                    self._add_moves(one, moved, part, resource)

    def _add_minutes(
        self, one: RowFit, chosen: Indices, middle: FloatArray, part: int, resource: int
    ) -> None:
        around = one.design[chosen, 1:] - middle
        slope, pull = one.slope[chosen, resource], one.pull[chosen, resource]
        weight, force = float(slope.sum()), float(pull.sum())
        mean = slope @ around / weight if weight > 0 else np.zeros(RATE_COUNT)
        slopes, pulled = self.slopes[part, resource], self.pulled[part, resource]
        squares, inside = self._squares[part, resource], around - mean
        squares[0] = float(pull @ pull) * np.outer(mean, mean)
        squares[1] = inside.T @ (inside * np.square(pull)[:, None])
        slopes[0] = weight * np.outer(mean, mean)
        slopes[1] = around.T @ (around * slope[:, None]) - slopes[0]
        pulled[0] = mean * force
        pulled[1] = around.T @ pull - pulled[0]
        self.level[part, resource] = force

    def _add_moves(self, one: RowFit, chosen: Indices, part: int, resource: int) -> None:
        changes = one.design[chosen, 1:]
        slope, pull = one.slope[chosen, resource], one.pull[chosen, resource]
        self.slopes[part, resource, 2] = changes.T @ (changes * slope[:, None])
        self._squares[part, resource, 2] = changes.T @ (changes * np.square(pull)[:, None])
        self.pulled[part, resource, 2] = changes.T @ pull

    def whitened(self, roots: FloatArray, *, alone: bool = False) -> FloatArray:
        """Return the whitened scores (F, 5, 18).

        Unless ``alone``, they are those of a fit without this block.
        """
        pulled = np.einsum("frkij,frkj->frki", roots, self.pulled)
        if not alone:
            share = roots @ self.slopes @ np.swapaxes(roots, -1, -2)
            leverage, vectors = np.linalg.eigh(share)
            rest = 1.0 - np.clip(leverage, 0.0, _MOST_LEVERAGE)
            turned = np.einsum("frkij,frki->frkj", vectors, pulled) / rest
            pulled = np.einsum("frkij,frkj->frki", vectors, turned)
        return np.asarray(pulled.reshape(*pulled.shape[:2], WIDTH))

    def independent(self, roots: FloatArray) -> FloatArray:
        """Return the sums of the squared whitened scores (F, 5, 18) of single rows."""
        found = np.einsum("frkij,frkjl,frkil->frki", roots, self._squares, roots)
        return np.asarray(found.reshape(*found.shape[:2], WIDTH))
