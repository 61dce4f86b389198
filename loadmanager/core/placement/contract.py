"""Contract of placements: rank candidates; ties are broken at random."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BundleId
from loadmanager.core.memory import Memory


@dataclass(frozen=True, slots=True)
class Ranking:
    """The equally good best broker rows, and the next memory of the placement.

    ``best`` is empty only if there were no candidates.
    """

    best: Indices
    memory: Memory


class Placement(Protocol):
    """A strategy that chooses which of the eligible brokers should take a bundle.

    Pulsar's accident `no-candidates`: its placements raise an exception if there is no
    candidate, or one without load data. Here the result is then empty, in both modes.
    """

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        """Return the best of ``candidates``, which are broker rows of ``view``, ascending."""


@runtime_checkable
class Watching(Protocol):
    def watch(self, view: ClusterView, memory: Memory) -> Memory:
        """Return the memory after ``view``; called once at the start of each round."""


def choose(best: Indices, rng: np.random.Generator) -> int | None:
    if not len(best):
        return None
    return int(best[0]) if len(best) == 1 else int(best[rng.integers(len(best))])
