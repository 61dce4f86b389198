"""Rounds as a leader decides them, on the views of any cluster.

Views come from a live cluster, a shadow, a snapshot, recorded history or a simulation. What is
decided on them, and what strategies remember from one decision to the next, is the same.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause, Move, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.round_memory import RoundMemory

NOBODY: Mapping[BundleId, BrokerId] = MappingProxyType({})


@dataclass(slots=True)
class Playback:
    """Decides with one planner, whose strategies remember their former decisions.

    Draining brokers are emptied between rounds (`place`), unless a `round` is asked to do it.
    """

    planner: Planner
    rng: np.random.Generator
    memory: RoundMemory = field(default_factory=RoundMemory)

    def round(self, view: ClusterView, *, draining: bool = False, **given: Any) -> Plan:
        """Return the decision of one round; it takes the same as `Planner.round`."""
        plan = self.planner.round(view, self.memory, self.rng, draining=draining, **given)
        self.memory = plan.memory
        return plan

    def place(
        self,
        view: ClusterView,
        bundles: Iterable[BundleId],
        leaving: Mapping[BundleId, BrokerId] = NOBODY,
        cause: Cause = Cause.UNOWNED,
    ) -> tuple[list[Move], dict[BundleId, tuple[Refusal, ...]]]:
        """Return moves of bundles to next owners between two rounds, and why others have none.

        No bundle goes to the broker that it is ``leaving``.
        """
        moves: list[Move] = []
        refusals: dict[BundleId, tuple[Refusal, ...]] = {}
        for bundle in bundles:
            answer = self.planner.place(
                view, bundle, self.memory, self.rng, leaving=leaving.get(bundle), cause=cause
            )
            view, self.memory = answer.view, answer.memory
            if answer.move is None:
                refusals[bundle] = answer.refusals
            else:
                moves.append(answer.move)
        return moves, refusals
