"""How sure a fit is, and what each kind of variation is worth: the spread of blocks' pulls.

Errors of neighbouring minutes are alike, and a background wanders for hours: rows must not
be taken for independent. Variation is separated by scale: ``between`` blocks (a broker's
days, as a rule), ``within`` a block, and around ``moves``. Each kind determines the costs by
itself, and counts by how much whole blocks disagree in it: a background that wanders from
day to day costs weight only to what was learned from days. Neighbouring blocks of a broker
may depend on each other by half. A block that decides a term by itself has pulled the fit
towards itself; its pull is taken as it would be without it (as a jackknife does).
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
"""Directions with less of the largest eigenvalue, terms scaled alike, are not known at all."""

_MOST_LEVERAGE: Final = 0.95
_LEAST_SPREAD: Final = 1e-6
"""Errors as expected spread by 1; data without any error would by 0."""


@dataclass(frozen=True, eq=False)
class Middles:
    """Each unit's weights (U, F, 5) and weighted mean of scaled, centred rates (U, F, 5, 6)."""

    weight: FloatArray
    rates: FloatArray


class Closing(NamedTuple):
    """What the rows of each kind say about a settled fit: (C, F, 5, 3, 6, 6) and (C, F, 5, 3, 6).

    ``slopes`` are second derivatives and ``roots`` take scores of a kind to where their
    expected spread is the unit matrix.
    """

    middles: Middles
    slopes: FloatArray
    roots: FloatArray


class Pulls(NamedTuple):
    """The whitened pulls of whole blocks, added up.

    ``total`` (C, F, 5, 18) is 0 where the fit is the best for a kind by itself. ``spread``
    (C, F, 5, 18, 18) are their products. ``unit`` (U, F, 5, 19): the products of a unit's
    pulls at its background with these, and with themselves. ``independent`` (C, F, 5, 18)
    is what the products would be on the diagonal if all rows were independent; they are no
    less than that. ``blocks`` (C, F, 5) counts.
    """

    total: FloatArray
    spread: FloatArray
    unit: FloatArray
    independent: FloatArray
    blocks: FloatArray


def closing(source: Source, statistics: RowStatistics, state: State) -> Closing:
    """Return what each kind of rows says about a settled fit; goes over them twice."""
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
    """Return how the blocks pull a settled fit; goes over the rows once."""
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
    """Return the root of the inverse of a matrix of slopes, 0 in directions without any."""
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
    """One block of one unit: its slopes and pulls for all fits, resources and kinds.

    ``slopes`` (F, 5, 3, 6, 6) and ``pulled`` (F, 5, 3, 6); ``level`` (F, 5) is the pull at
    the unit's background.
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
        """Return the pulls (F, 5, 18) where their expected spread is 1.

        Unless ``alone``, as they would be had the fit been made without this block.
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
        """Return the sums of squared pulls (F, 5, 18) of single rows, whitened."""
        found = np.einsum("frkij,frkjl,frkil->frki", roots, self._squares, roots)
        return np.asarray(found.reshape(*found.shape[:2], WIDTH))
