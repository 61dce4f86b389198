"""The record of one simulation: the true state over time, all moves, and refusals."""

from collections.abc import Callable, Mapping, Sequence
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

RESOURCES: Final = ("cpu", "memory", "network_in", "network_out")
"""The resources of a modelled broker, in the order of the last axis of arrays."""

Floats = NDArray[np.float32]


class Why(StrEnum):
    SHED = "shed"
    PLACED = "placed"
    DRAINED = "drained"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveRecord:
    """A move of one bundle. ``source`` is None if it had no owner.

    The rates are the true ones at the time of the order. ``interrupted_client_s`` is the sum of the
    waiting times of its clients. The target serves from ``served_at_s`` on, None if it did not
    before the end; no broker served the bundle for ``pause_s``.
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
    """The true state at each recorded moment; T moments, B brokers, four `RESOURCES`.

    ``demand`` is the demand as a fraction of the capacity of the broker, including background;
    above 1 the broker cannot serve all of it. ``served`` is the usage as a fraction of capacity.
    Both are NaN while a broker is not ``present``. ``bound`` is a proven lower bound of the largest
    demand over all resources for any assignment. ``unowned_msgs_per_s`` is the traffic of bundles
    that no broker serves. ``excess`` is the mean over brokers of the demand above the common level
    of an ideal (water-filling) distribution, relative to that level. ``unmoved_cpu`` (T, B) is the
    demand for CPU without moves for load.
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
    excess: Floats
    unmoved_cpu: Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class Run:
    """One simulation of one scenario with one pair of strategies and one seed.

    ``refusals`` are numbers of refusals by reason. ``interrupted_client_s`` includes clients of
    crashed brokers, which no move record does; ``interrupted_in_warm_up_client_s`` is the part
    before ``warm_up_s``. ``happened`` are the events as texts with their times.
    """

    scenario: str
    strategy: str
    mode: str
    seed: int
    warm_up_s: float
    duration_s: float
    timeline: Timeline
    moves: Sequence[MoveRecord]
    rounds: int
    refusals: Mapping[str, int]
    interrupted_client_s: float
    interrupted_in_warm_up_client_s: float = 0.0
    happened: Sequence[tuple[float, str]] = field(default_factory=tuple)


class Witness(Protocol):
    """Receives what a leader and agents would record, in the order of the simulation."""

    def reported(self, at_s: float, report: LoadReport) -> None: ...

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        """Receive view and plan of a round; ``averages`` are only valid during the call."""

    def moved(self, record: MoveRecord) -> None: ...
