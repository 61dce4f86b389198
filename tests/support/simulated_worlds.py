"""Small scenarios for tests of the simulator, and a world that is asked step by step."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Plan
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.results import MoveRecord, Run, Why
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.strategies import Strategy, planner_for
from loadmanager.simulator.world import Moment, World

NAMESPACE = "tenant/space"
PAIR = "threshold+least_long_term_message_rate"
FREE = {
    "cpu_us_per_msg": 0.0,
    "cpu_ns_per_byte": 0.0,
    "cpu_us_per_topic_s": 0.0,
    "cpu_us_per_connection_s": 0.0,
    "wire_bytes_per_msg": 0.0,
    "memory_kib_per_topic": 0.0,
    "memory_kib_per_connection": 0.0,
    "memory_kib_per_msg_per_s": 0.0,
}
"""A broker whose work costs nothing but the network its content needs."""

QUIET = {"cores": 0.0, "memory_mib": 0.0}
"""Nobody else on the host."""

EXACT = {"usage_fraction": 0.0, "rate_fraction": 0.0, "delay_s": 0.0}
"""Agents that measure without error, and are seen at once."""

AT_ONCE = {"order_s": 0.0, "base_s": 0.0, "per_topic_s": 0.0, "reconnect_s": 0.0}
BUSY = [
    {
        "name": "b", "count": 4, "cores": 1.0, "background": QUIET,
        "cost": FREE | {"cpu_us_per_msg": 100.0},
    }
]  # fmt: skip
"""Four brokers that are full at 10,000 messages a second."""

PLAIN = {
    "bundle_cpu_spread": 0.0,
    "cpu_growth": 0.0,
    "cold_cpu_factor": 1.0,
    "reconnect_cpu_ms": 0.0,
    "backlog_s": 0.0,
}
"""Work that costs what its rates say, and nothing more after a move."""


def scenario(
    *,
    brokers: int | Sequence[Mapping[str, object]] = 2,
    load: Mapping[str, object] | Sequence[Mapping[str, object]] | None = None,
    **others: object,
) -> Scenario:
    usual = {"namespace": NAMESPACE, "bundles": 4, "topics": 40, "msgs_in_per_s": 4000.0}
    loads = [load or {}] if load is None or isinstance(load, Mapping) else list(load)
    classes = [{"name": "b", "count": brokers}] if isinstance(brokers, int) else list(brokers)
    content = {
        "title": "A small one",
        "duration_s": 600.0,
        "step_s": 1.0,
        "brokers": classes,
        "hidden": PLAIN,
        "load": [{**usual, **each} for each in loads],
        **others,
    }
    return Scenario.model_validate(content)


def broker(name: str) -> BrokerId:
    return BrokerId(f"{name}:8080")


def run(played: Scenario, strategy: str = PAIR, seed: int = 1, **others: object) -> Run:
    pair = Strategy.parse(strategy)
    planner = planner_for(played, pair)
    return simulate(played, planner, seed=seed, **others)  # type: ignore[arg-type]  # by name


class Told:
    def __init__(self) -> None:
        self.reports: list[tuple[float, LoadReport]] = []
        self.rounds: list[tuple[float, ClusterView, Plan]] = []
        self.averages: list[Mapping[BundleId, BundleAverages]] = []
        self.moves: list[MoveRecord] = []

    def reported(self, at_s: float, report: LoadReport) -> None:
        self.reports.append((at_s, report))

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        self.rounds.append((at_s, view, plan))
        self.averages.append(averages())

    def moved(self, record: MoveRecord) -> None:
        self.moves.append(record)


class Stepped:
    def __init__(self, played: Scenario, seed: int = 1) -> None:
        self.scenario = played
        self.world = World(played, None, np.random.default_rng(seed))
        self.now_s = 0.0
        self.moment: Moment = self.world.advance(0.0)

    def until(self, now_s: float) -> Moment:
        while self.now_s < now_s:
            self.now_s += self.scenario.step_s
            self.moment = self.world.advance(self.now_s)
        return self.moment

    def order(self, bundle: BundleId, target: str, cause: Cause = Cause.OVERLOADED) -> None:
        row = self.world.bundles.index(bundle)
        holder = int(self.world.hand_overs.holder[row])
        source = self.world.brokers[holder] if holder >= 0 else None
        move = Move(bundle, source, broker(target), cause)
        self.world.order([move], self.now_s, Why.SHED)

    def owner(self, bundle: BundleId) -> str | None:
        row = int(self.moment.measured.owner[self.world.bundles.index(bundle)])
        return None if row < 0 else self.world.brokers[row].removesuffix(":8080")

    def owners(self) -> list[str | None]:
        return [self.owner(bundle) for bundle in self.world.bundles]
