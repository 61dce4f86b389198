"""What is kept of a scenario that ran with real processes; brokers go by their names."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BundleId, TopicName
from loadmanager.simulator.scenario import Load

ROUNDS: Final = 5
"""How many rounds that may move something are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A move that a round decided on; brokers by name.

    ``round`` counts from 1, the first round that may move anything.
    """

    round: int
    bundle: BundleId
    source: str
    target: str

    @property
    def way(self) -> tuple[BundleId, str, str]:
        return self.bundle, self.source, self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """What happened. Times are seconds since the leader may move anything.

    ``looks`` begin with the warm-up, at negative times. The first round that may move
    something was at ``first_round_s``, the others each ``interval_s`` later. ``pauses_s``
    are how long moved bundles were served by nobody, as the brokers' own records say.
    ``served_fraction`` is what all brokers served of what was asked for: where that is
    well below 1 the machine had not enough CPU for them, and the loads say nothing.
    """

    steps: tuple[Step, ...]
    looks: tuple["LiveLook", ...]
    first_round_s: float
    interval_s: float
    ended_s: float
    publish_errors: int
    publish_retries: int
    pauses_s: tuple[float, ...] = ()
    served_fraction: float = 1.0


@dataclass(frozen=True, slots=True)
class LiveLook:
    """The cluster at one moment, brokers by name: CPU usage, and what each bundle's rate was."""

    at_s: float
    cpu_fraction: Mapping[str, float]
    served: Mapping[str, Mapping[BundleId, float]]

    @property
    def owners(self) -> dict[BundleId, str]:
        return {bundle: name for name, rates in self.served.items() for bundle in rates}

    @property
    def msgs_per_s(self) -> float:
        return sum(sum(rates.values()) for rates in self.served.values())


def topic_of(load: Load) -> TopicName:
    return TopicName("persistent", load.namespace, "topic-0")


def bundle_of(load: Load) -> BundleId:
    (bundle,) = Boundaries.even(load.namespace, 1).bundles
    return bundle
