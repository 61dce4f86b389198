"""The joint strategy: which bundles move where, all resources, bundles and brokers at once."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.cost import CostDocument, CostModel
from loadmanager.core.filters import Limits
from loadmanager.core.joint.costs import JointCosts
from loadmanager.core.joint.deciding import decided, learned_from
from loadmanager.core.joint.prior import published_costs
from loadmanager.core.joint.unit_costs import PublishedCosts
from loadmanager.core.joint.weighing import Weigher
from loadmanager.core.memory import Memory
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import Settings, setting
from loadmanager.core.shedding.contract import Shed


class MovePrice(StrEnum):
    """How dear a move is."""

    QUIET = "quiet"
    NORMAL = "normal"
    EVEN = "even"


_PRICES: Final[Mapping[MovePrice, float]] = {
    MovePrice.QUIET: 4.0,
    MovePrice.NORMAL: 2.0,
    MovePrice.EVEN: 0.35,
}
"""What the potential must fall by for each weight of a mean broker that is interrupted.

It is for an imbalance that is new; `Ages` has what an older one costs.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointShedder(Settings):
    """Choose moves and their targets together, by what they gain for what they interrupt.

    It learns from load reports what messages, bytes, topics and connections cost of each
    resource, and how fast and how busy with other things each broker is. So it accounts for how
    high every broker would stand if the load were water, and moves bundles, or swaps them,
    where that brings brokers closer to this level by more than the move's price, which
    falls the longer a broker has stood above it. How much of a change of traffic lasts is
    learned, too: what is gone in a minute moves nothing.
    Where usage is within the noise, rates are balanced instead.

    It is its own placement, and refuses another beside it.
    """

    move_price: MovePrice = setting(
        "How dear a move is. quiet: only what stands out is moved. even: brokers are kept "
        "closer together, by more moves.",
        default=MovePrice.NORMAL,
    )
    heap: bool = setting(
        "Whether heap memory counts, in spite of its weight, while traffic makes most of it "
        "and it can be predicted: a collector's saw-tooth cannot.",
        default=True,
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)
    published: PublishedCosts | None = None

    def beginning_with(self, document: CostDocument | None) -> "JointShedder":
        """Return the strategy that begins with the costs that are published, if any."""
        return replace(self, published=None if document is None else published_costs(document))

    def costs(self, memory: Memory, otherwise: CostModel) -> CostModel:
        """Return what it learned of costs, or the other ones before it learned any."""
        return otherwise if memory.joint is None else JointCosts(memory.joint.learned, otherwise)

    def watch(self, view: ClusterView, memory: Memory) -> Memory:
        """Return the memory with what the reports of ``view`` teach."""
        return replace(memory, joint=learned_from(view, memory.joint, self.published))

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        """Return the moves of one round where nothing but the view restricts them."""
        brokers = np.ones(len(view.brokers.names), dtype=np.bool_)
        bundles = np.ones(len(view.bundles.known), dtype=np.bool_)
        every = ~view.brokers.draining & brokers
        return self.decide(view, memory, Limits(gives=every, takes=every, movable=bundles))

    def decide(self, view: ClusterView, memory: Memory, limits: Limits) -> Shed:
        """Return the moves of one round, each worth its price and within the limits."""
        by = self.weigher(view, memory, limits)
        offers, refusals, state = decided(view, by.state, by.weights, by.limits, by.price)
        return Shed(offers, refusals, replace(memory, joint=state))

    def weigher(self, view: ClusterView, memory: Memory, limits: Limits) -> Weigher:
        """Return what moves are weighed by once the reports of ``view`` have taught."""
        return Weigher(
            view=view,
            state=learned_from(view, memory.joint, self.published),
            weights=replace(self.weights, memory=1.0) if self.heap else self.weights,
            limits=replace(limits, movable=limits.movable & view.selectable),
            price=_PRICES[self.move_price],
            published=self.published,
        )
