"""The record of one simulation: the truth over time, every move, and the rounds' refusals."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.plan import Cause
from loadmanager.core.planner import Plan
from loadmanager.simulator.scenario.model import FORMER_MODEL

RESOURCES: Final = ("cpu", "memory", "network_in", "network_out")
"""The resources a modelled broker has, in the order of the arrays' last axis."""

Floats = NDArray[np.float32]


class Why(StrEnum):
    """Why a bundle was moved."""

    SHED = "shed"
    PLACED = "placed"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """One bundle given to another broker. ``source`` is None if no broker owned it.

    The rates are the true ones when it was ordered. ``interrupted_client_s`` is how long
    its clients waited, added up. ``served_at_s`` is when the target served, None if it did
    not before the end; no broker did for ``pause_s``.
    """

    at_s: float
    bundle: BundleId
    source: BrokerId | None
    target: BrokerId
    why: Why
    cause: Cause
    msgs_per_s: float
    bytes_per_s: float
    interrupted_client_s: float
    served_at_s: float | None = None
    pause_s: float = 0.0


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """The truth at each recorded moment; T moments, B brokers, four `RESOURCES`.

    ``demand`` is what the load asks for as a fraction of the broker's capacity,
    background included: above 1 the broker cannot serve all. ``served`` is the fraction
    it serves. Both are NaN while a broker is not ``present``. ``bound`` is a proven lower
    bound of the largest demand, over all resources, that any assignment could reach.
    ``unowned_msgs_per_s`` is the traffic of bundles that no broker serves. ``excess`` is how
    far brokers stand above the level to which all load would fill them like water: the mean
    over the brokers, as a fraction of that level. ``unmoved_cpu`` (T, B) is the demand of CPU
    without any move for load. Model 1 has neither.
    """

    time_s: NDArray[np.float64]
    brokers: tuple[BrokerId, ...]
    demand: Floats
    served: Floats
    present: NDArray[np.bool_]
    msgs_per_s: Floats
    bytes_per_s: Floats
    bundles: NDArray[np.int32]
    bound: Floats
    unowned_msgs_per_s: Floats
    excess: Floats | None = None
    unmoved_cpu: Floats | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One simulation of one scenario with one pair of strategies and one seed.

    ``refusals`` counts what was left alone, by reason. ``interrupted_client_s`` also
    counts clients of crashed brokers, which no move record includes;
    ``interrupted_in_warm_up_client_s`` is how much of it was before ``warm_up_s``.
    ``happened`` are the events, as texts with their times. In ``model`` 1 moves and waiting
    before the end of the warm-up count for nothing.
    """

    scenario: str
    strategy: str
    mode: str
    seed: int
    settings: Mapping[str, object]
    warm_up_s: float
    duration_s: float
    timeline: Timeline
    moves: Sequence[MoveRecord]
    rounds: int
    refusals: Mapping[str, int]
    interrupted_client_s: float
    interrupted_in_warm_up_client_s: float = 0.0
    happened: Sequence[tuple[float, str]] = field(default_factory=tuple)
    model: int = 2

    @property
    def moves_count_from_s(self) -> float:
        """From when on moves, and what they cost, are counted."""
        return self.warm_up_s if self.model == FORMER_MODEL else 0.0


class Witness(Protocol):
    """Receives what a leader and agents would record, as it happens in a simulation."""

    def reported(self, at_s: float, report: LoadReport) -> None:
        """Take the report that an agent published."""

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Mapping[BundleId, BundleAverages],
    ) -> None:
        """Take what the leader saw and decided in a round; look at ``averages`` at once."""

    def moved(self, record: MoveRecord) -> None:
        """Take a move that was carried out."""
