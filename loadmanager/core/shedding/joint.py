from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.filters import Limits
from loadmanager.core.joint.costs import JointCosts
from loadmanager.core.joint.deciding import decided, learned_from
from loadmanager.core.joint.standing import TOLERANCE
from loadmanager.core.joint.weighing import Weigher
from loadmanager.core.memory import Memory
from loadmanager.core.projection import CostModel
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import Settings, setting
from loadmanager.core.shedding.contract import Shed


class MovePrice(StrEnum):
    """The price of a move."""

    QUIET = "quiet"
    NORMAL = "normal"
    EVEN = "even"


_PRICES: Final[Mapping[MovePrice, float]] = {
    MovePrice.QUIET: 4.0,
    MovePrice.NORMAL: 2.0,
    MovePrice.EVEN: 0.35,
}
"""The least reduction of the potential per interrupted load, in loads of a mean broker.

It applies to a new imbalance, and for clients that wait one second; `Ages` reduces it for older
imbalances.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointShedder(Settings):
    """Choose moves together with their targets, by their gain and the traffic they interrupt.

    From load reports it learns the usage of each resource per message, byte, topic and
    connection, and the speed and background usage of each broker. From these it computes the
    level of all brokers if load were evenly divisible, and moves or swaps bundles if that brings
    brokers closer to this level by more than the price of the move. The price falls the longer a
    broker has been above the level. It also learns how much of a change of traffic lasts: a
    burst that ends within a minute causes no move. If usage is within its noise, rates are
    balanced instead.

    It includes its own placement, and cannot be combined with another one.
    """

    move_price: MovePrice = setting(
        "Price of a move. quiet: only large imbalances are corrected. even: brokers are kept "
        "closer together, by more moves.",
        default=MovePrice.NORMAL,
    )
    pause_s: float = setting(
        "Time for which clients wait at a move. A longer one makes moves dearer in proportion. "
        "attach uses the median of what it measures, if that is more.",
        "s",
        default=1.0,
        within=(0.1, 600.0),
    )
    tolerance: float = setting(
        "Use up to which a broker sheds nothing; 1 is the level.",
        "multiple of the level",
        default=TOLERANCE,
        within=(1.0, 2.0),
    )
    mean_s: float = setting(
        "Time over which the age of an imbalance counts its running mean, where rounds are on the "
        "noise of single windows. attach uses 60 s, if that is more.",
        "s",
        default=0.0,
        within=(0.0, 600.0),
    )
    heap: bool = setting(
        "Whether heap memory counts, whatever its weight, while most of it depends on traffic and "
        "it can be predicted, unlike the saw-tooth of a garbage collector.",
        default=True,
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)

    def costs(self, memory: Memory, otherwise: CostModel) -> CostModel:
        return otherwise if memory.joint is None else JointCosts(memory.joint.learned, otherwise)

    def watch(self, view: ClusterView, memory: Memory) -> Memory:
        return replace(memory, joint=learned_from(view, memory.joint))

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        brokers = np.ones(len(view.brokers.names), dtype=np.bool_)
        bundles = np.ones(len(view.bundles.known), dtype=np.bool_)
        every = ~view.brokers.draining & brokers
        return self.decide(view, memory, Limits(gives=every, takes=every, movable=bundles))

    def decide(self, view: ClusterView, memory: Memory, limits: Limits) -> Shed:
        offers, refusals, state = decided(self.weigher(view, memory, limits))
        return Shed(offers, refusals, replace(memory, joint=state))

    def weigher(self, view: ClusterView, memory: Memory, limits: Limits) -> Weigher:
        return Weigher(
            view=view,
            state=learned_from(view, memory.joint),
            weights=replace(self.weights, memory=1.0) if self.heap else self.weights,
            limits=replace(limits, movable=limits.movable & view.selectable),
            price=_PRICES[self.move_price] * self.pause_s,
            tolerance=self.tolerance,
            mean_s=self.mean_s,
        )
