"""RoundRobin: one candidate after the other, whatever they carry."""

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
    """Take the candidates in turn. Pulsar places namespaces that are never shed like this.

    The order is remembered. It is made anew when the number of candidates changes or a
    broker in it is no candidate any more; a changed set of equal size keeps the old
    order until then.
    """

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        """Return the candidate whose turn it is."""
        del bundle
        if not len(candidates):
            return Ranking(candidates, memory)
        names = tuple(view.brokers.names[row] for row in candidates.tolist())
        name, memory = take_turn(names, memory)
        return Ranking(np.array([view.row(name)], dtype=np.intp), memory)


def take_turn(names: tuple[BrokerId, ...], memory: Memory) -> tuple[BrokerId, Memory]:
    """Return whose turn it is among ``names``, at least one, and the memory afterwards."""
    place = memory.turn % len(names)
    order = memory.turn_order
    if len(order) != len(names) or order[place] not in names:
        order = names
    turn = 0 if memory.turn == _TURNS else memory.turn + 1
    return order[place], replace(memory, turn=turn, turn_order=order)
