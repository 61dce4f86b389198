"""The planners of a replay: production planners with the settings of each round."""

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from loadmanager.config.offline import Wanted, planner_for
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement import Placement, Ranking, Watching
from loadmanager.core.planner import Planner
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import with_arithmetic
from loadmanager.pipeline.replay.frames import Frame

_WHERE: Final = "the history"


@dataclass(slots=True)
class Planners:
    """Makes the planner of each round: the recorded one with the changes ``wanted``."""

    wanted: Wanted = field(default_factory=Wanted)
    _made: dict[str, Planner] = field(default_factory=dict)

    def at(self, frame: Frame) -> Planner:
        """Return the planner of one round.

        Raises:
            ConfigError: the recorded settings and the changes contradict each other.
        """
        planner = self._made.get(frame.settings)
        if planner is None:
            planner = planner_for(_WHERE, frame.in_force, self.wanted)
            self._made[frame.settings] = planner
        return planner


def plain_weights(planner: Planner) -> ResourceWeights:
    """Return the weights of resources, without Pulsar's accidents of rounding."""
    return with_arithmetic(planner.weights, like_java=False)


@dataclass(frozen=True, slots=True)
class Followed:
    """A placement that chooses the recorded target among equally good ones.

    The random choice of the leader is not in the history; everything else is decided again.
    """

    placement: Placement
    recorded: dict[BundleId, BrokerId]

    def rank(
        self, view: ClusterView, candidates: Indices, bundle: BundleId, memory: Memory
    ) -> Ranking:
        """Return the best brokers; only the recorded target if it is one of them."""
        ranking = self.placement.rank(view, candidates, bundle, memory)
        row = view.brokers.index.get(self.recorded.get(bundle, BrokerId("")))
        if row is None or row not in ranking.best:
            return ranking
        return Ranking(np.array([row], dtype=np.intp), ranking.memory)


@dataclass(frozen=True, slots=True)
class FollowedWatching(Followed):
    """The same for a placement that observes every round."""

    def watch(self, view: ClusterView, memory: Memory) -> Memory:
        watching = self.placement
        return watching.watch(view, memory) if isinstance(watching, Watching) else memory


def following(planner: Planner, recorded: dict[BundleId, BrokerId]) -> Planner:
    """Return a planner that chooses the recorded target among equally good ones."""
    watching = isinstance(planner.placement, Watching)
    kind = FollowedWatching if watching else Followed
    return replace(planner, placement=kind(planner.placement, recorded))
