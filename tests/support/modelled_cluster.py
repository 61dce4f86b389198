"""A cluster that does as a test says, with its modelled agents and leader."""

from dataclasses import dataclass, field

import numpy as np

from loadmanager.config.sections import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
)
from loadmanager.config.strategies import planner_of
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.planner import Planner
from loadmanager.simulator.agents import Agents, Measured, Reported
from loadmanager.simulator.engine import Leader
from loadmanager.simulator.scenario import NoiseSettings

BROKERS = tuple(BrokerId(f"{name}:8080") for name in "cabd")
BUNDLES = tuple(bundle_id(Namespace(f"t/n{n % 3}"), n, n + 1) for n in range(20))
NOISE = NoiseSettings(usage_fraction=0.1, rate_fraction=0.1, delay_s=0.5)
EXACT = NoiseSettings(usage_fraction=0.0, rate_fraction=0.0, delay_s=0.0)


def planner(shedder: str = "AvgShedder", mode: str = "safe") -> Planner:
    return planner_of(
        SheddingSettings(strategy=shedder),
        PlacementSettings(),
        PlannerSettings.model_validate({"mode": mode}),
        LeaderSettings(),
    )


@dataclass
class Cluster:
    noise: NoiseSettings = EXACT
    planner: Planner = field(default_factory=planner)
    now_s: float = 0.0
    owner: list[int] = field(default_factory=lambda: [n % 4 for n in range(20)])
    rates: np.ndarray[tuple[int, int], np.dtype[np.float64]] = field(
        default_factory=lambda: np.outer(np.arange(1.0, 21.0), [100.0, 200.0, 1e5, 3e5])
    )
    present: list[bool] = field(default_factory=lambda: [True] * 4)
    draining: list[bool] = field(default_factory=lambda: [False] * 4)
    started_at_ms: list[int] = field(default_factory=lambda: [1] * 4)
    in_flight: dict[BundleId, BrokerId] = field(default_factory=dict)
    session_s: float = 30.0

    def __post_init__(self) -> None:
        self.agents = Agents(
            BROKERS, BUNDLES, ReportSettings(), self.noise, np.random.default_rng(1)
        )
        self.leader = Leader(
            self.agents,
            self.planner,
            LeaderSettings(),
            np.random.default_rng(2),
            session_s=self.session_s,
        )

    def step(self) -> tuple[Reported, ...]:
        self.now_s += 10.0
        owner = np.array(self.owner, dtype=np.intp)
        traffic = np.stack([self.rates[owner == row].sum(axis=0) for row in range(len(BROKERS))])
        usage = np.column_stack(
            [traffic[:, 0] / 20, traffic[:, 1] / 40, traffic[:, 0] * 0, traffic[:, 2:] / 1e3]
        )
        return self.agents.sample(
            self.now_s,
            Measured(
                owner=owner,
                rates=self.rates,
                topics=np.arange(20),
                producers=np.full(20, 2),
                consumers=np.full(20, 3),
                usage=usage,
                limit=np.array([[800.0, 4096.0, 0.0, 1e5, 1e5]] * 4),
                present=np.array(self.present),
                draining=np.array(self.draining),
                started_at_ms=np.array(self.started_at_ms),
            ),
        )

    def arrive(self) -> None:
        for bundle, target in self.in_flight.items():
            self.owner[BUNDLES.index(bundle)] = BROKERS.index(target)
        self.in_flight = {}

    def lose(self, *rows: int) -> list[BundleId]:
        lost = [n for n, owner in enumerate(self.owner) if owner in rows]
        for row in rows:
            self.present[row] = False
        for bundle in lost:
            self.owner[bundle] = -1
        return [BUNDLES[bundle] for bundle in lost]


def settled(**changed: object) -> Cluster:
    cluster = Cluster(**changed)  # type: ignore[arg-type]  # fields by name
    for _ in range(12):
        cluster.step()
        cluster.leader.tick(cluster.now_s)
    return cluster
