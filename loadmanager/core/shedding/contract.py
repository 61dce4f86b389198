from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from loadmanager.core.cluster import ClusterView
from loadmanager.core.filters import Limits
from loadmanager.core.joint.weighing import Weigher
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Offer, Refusal
from loadmanager.core.projection import CostModel


@dataclass(frozen=True, slots=True)
class Spread:
    """Mean and standard deviation of the brokers' load before any move, as fractions.

    The deviation may be NaN, by rounding, when all loads are equal.
    """

    mean: float
    std: float


@dataclass(frozen=True, slots=True)
class Shed:
    """Offers of a shedder, its refusals, and its next memory.

    The offers of a broker are in the order of selection. A refusal with an empty subject applies
    to the whole cluster. ``spread`` is None if it was not computed.
    """

    offers: tuple[Offer, ...]
    refusals: tuple[Refusal, ...]
    memory: Memory
    spread: Spread | None = None


class Shedder(Protocol):
    def shed(self, view: ClusterView, memory: Memory) -> Shed: ...


@runtime_checkable
class Deciding(Protocol):
    """A shedder that weighs all its moves together itself; the planner only limits them."""

    def decide(self, view: ClusterView, memory: Memory, limits: Limits) -> Shed: ...

    def watch(self, view: ClusterView, memory: Memory) -> Memory: ...

    def weigher(self, view: ClusterView, memory: Memory, limits: Limits) -> Weigher: ...

    def costs(self, memory: Memory, otherwise: CostModel) -> CostModel: ...
