from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement.contract import Ranking

_TURNS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin:
    """Choose the candidates in turn. Pulsar places namespaces that are never shed like this.

    The order is kept until the candidates change.

    Pulsar's accident `stale-turns`: there the order changes only if the number of candidates
    changes or the next broker has left. If one broker replaced another, the old order remains
    until the turn of the missing one, and the new one is never chosen.
    """

    like_java: bool = False

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        del bundle
        if not len(candidates):
            return Ranking(candidates, memory)
        names = tuple(view.brokers.names[row] for row in candidates.tolist())
        name, memory = take_turn(names, memory, like_java=self.like_java)
        return Ranking(np.array([view.row(name)], dtype=np.intp), memory)


def take_turn(
    names: tuple[BrokerId, ...], memory: Memory, *, like_java: bool
) -> tuple[BrokerId, Memory]:
    """Return the next one of ``names``, at least one, and the memory afterwards."""
    place = memory.turn % len(names)
    order = memory.turn_order
    stale = order != names
    if like_java:  # stale-turns
        stale = len(order) != len(names) or order[place] not in names
    if stale:
        order = names
    turn = 0 if memory.turn == _TURNS else memory.turn + 1
    return order[place], replace(memory, turn=turn, turn_order=order)
