"""A simulated month whose hidden costs are known, and its reports as rows, without Spark."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cost_months import changes

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.planner import Plan
from loadmanager.core.scores import FloatArray
from loadmanager.pipeline.cost_model.rows import RATES, Rows
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.listings import ListedStats
from loadmanager.simulator.run import MoveRecord
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scenario.brokers import BrokerClass
from loadmanager.simulator.strategies import Strategy, planner_for

PAIR = "threshold+least_long_term_message_rate"
STEP_S = 300.0
DAY_S = 86_400.0

BY_RATES = {
    "bundle_cpu_spread": 0.0,
    "cpu_growth": 0.0,
    "cold_cpu_factor": 1.0,
    "reconnect_cpu_ms": 0.0,
    "backlog_s": 0.0,
}
"""Hidden costs of a scenario in which usage follows exactly from rates."""

_KINDS = (
    # name, topics, messages in per second, bytes each, fan-out, producers and consumers a topic
    ("events", 900, 24_000.0, 200.0, 3.0, 1.0, 4.0),
    ("orders", 600, 9_000.0, 1_000.0, 1.0, 2.0, 1.0),
    ("files", 150, 1_500.0, 12_000.0, 0.5, 1.0, 1.0),
    ("sensors", 2_400, 18_000.0, 90.0, 0.6, 3.0, 0.5),
    ("audit", 300, 3_000.0, 3_000.0, 2.0, 1.0, 6.0),
)


def scenario(
    *,
    days: float = 30.0,
    step_s: float = STEP_S,
    brokers: int = 4,
    usage_fraction: float = 0.02,
    hidden: Mapping[str, float] = BY_RATES,
) -> Scenario:
    """Return a month of two classes of brokers that serve topics of five kinds.

    Each kind has messages of another size, other fan-out and other clients per topic, and
    its bundles have their own hours: costs can be told apart. The small brokers are full
    at times. Somebody else works on the hosts for hours. Without ``hidden`` costs work costs what
    its rates say, so each cost has a true value; with those of a scenario bundles with the same
    rates differ, and CPU grows faster than the work.
    """
    content: dict[str, Any] = {
        "hidden": dict(hidden),
        "title": "a month with known costs",
        "duration_s": days * DAY_S,
        "step_s": step_s,
        "brokers": _brokers(brokers),
        "load": [_load(brokers / 4, kind) for kind in _KINDS],
        "noise": {"usage_fraction": usage_fraction},
        "events": list(_events(days, brokers)),
        # A report at each step.
        "report": {"max_interval_s": 0.9 * step_s, "jitter_fraction": 0.0},
        "leader": {
            "tick_interval_s": step_s,
            "round_interval_s": step_s,
            "report_stale_s": 3_600.0,
        },
    }
    return Scenario.model_validate(content)


def _brokers(count: int) -> list[dict[str, Any]]:
    return [
        {
            "name": "large",
            "count": count,
            "cores": 8.0,
            "cost": {
                "cpu_us_per_msg": 20.0,
                "cpu_ns_per_byte": 12.0,
                "cpu_us_per_topic_s": 800.0,
                "cpu_us_per_connection_s": 200.0,
            },
            "background": {"cores": 0.5, "memory_mib": 512.0, "network_in_mbit_per_s": 5.0},
        },
        {
            "name": "small",
            "count": count,
            "cores": 4.0,
            "cost": {
                "cpu_us_per_msg": 30.0,
                "cpu_ns_per_byte": 20.0,
                "cpu_us_per_topic_s": 1_500.0,
                "cpu_us_per_connection_s": 300.0,
            },
            "background": {"cores": 0.2},
        },
    ]


_Kind = tuple[str, int, float, float, float, float, float]


def _load(share: float, kind: _Kind) -> dict[str, Any]:
    name, topics, msgs_in_per_s, message_bytes, fan_out, producers, consumers = kind
    return {
        "namespace": f"tenant/{name}",
        "bundles": 20,
        "topics": int(topics * share),
        "msgs_in_per_s": msgs_in_per_s * share,
        "message_bytes": message_bytes,
        "fan_out": fan_out,
        "producers_per_topic": producers,
        "consumers_per_topic": consumers,
        "skew": {"kind": "log_normal", "sigma": 0.8},
        "placed": "random",
        "patterns": [
            {"kind": "day", "amplitude": 0.5, "spread_h": 6.0},
            {"kind": "week", "amplitude": 0.2, "spread_h": 48.0},
            {"kind": "jitter", "fraction": 0.15, "memory_s": 3600.0},
            {"kind": "burst", "factor": 3.0, "length_s": 1800.0, "every_s": 43_200.0},
        ],
    }


def _events(days: float, brokers: int) -> Iterator[dict[str, Any]]:
    """Yield what happens: each small broker and then each large one is upgraded in turn."""
    for number, day in enumerate(range(1, int(days), 3)):
        group = ("large", "small")[number % 2]
        yield {
            "kind": "restart",
            "at_s": day * DAY_S,
            "brokers": [group],
            "every_s": 7_200.0,
            "down_s": 1_200.0,
        }
        yield {
            "kind": "noise",
            "at_s": (day + 1.3) * DAY_S,
            "brokers": [f"{group}-{number // 2 % brokers + 1}"],
            "cores": 1.5,
            "for_s": 10_000.0,
        }


@dataclass(eq=False)
class Grid:
    """A witness that keeps what each broker reported at each step, and who moved when."""

    scenario: Scenario
    seen: dict[tuple[str, int], tuple[FloatArray, FloatArray, FloatArray]] = field(
        default_factory=dict
    )
    touched: set[tuple[str, int]] = field(default_factory=set)

    def reported(self, at_s: float, report: LoadReport) -> None:
        assert isinstance(report.bundles, ListedStats)
        sums = {name: sum(column) for name, column in report.bundles.columns().items()}
        sums["connections"] = sums["producers"] + sums["consumers"]
        rates = np.array([float(sums[name]) for name in RATES])
        resources = (
            report.cpu,
            report.memory,
            report.direct_memory,
            report.bandwidth_in,
            report.bandwidth_out,
        )
        usage = np.array([np.nan if one is None else one.usage for one in resources])
        limit = np.array([np.nan if one is None else one.limit for one in resources])
        step = int(at_s // self.scenario.step_s)
        self.seen[str(report.broker), step] = rates, usage, limit

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Mapping[BundleId, BundleAverages],
    ) -> None:
        pass

    def moved(self, record: MoveRecord) -> None:
        if record.served_at_s is not None:
            step = int(record.served_at_s // self.scenario.step_s)
            self.touched |= {(str(one), step) for one in (record.source, record.target) if one}

    def rows(self, seed: int = 0, usage_fraction: float = 0.0) -> Rows:
        """Return all rows; with an error of measuring usage, as agents have it, if asked for."""
        names = [f"{name}:8080" for name in self.scenario.broker_names]
        steps = 1 + max(step for _, step in self.seen)
        nothing = np.full(16, np.nan)
        grid = np.array(
            [
                [
                    np.concatenate(self.seen[name, step]) if (name, step) in self.seen else nothing
                    for step in range(steps)
                ]
                for name in names
            ]
        )
        moved = np.array(
            [[(name, step) in self.touched for step in range(steps)] for name in names]
        )
        day = (np.arange(steps) * self.scenario.step_s // DAY_S).astype(np.int64)
        late = np.arange(steps) >= steps / 2
        usage, limit = grid[..., 6:11], grid[..., 11:]
        deviation = np.sqrt(np.log1p(usage_fraction**2))
        errors = deviation * np.random.default_rng(seed).standard_normal(usage.shape)
        usage = usage * np.exp(errors - deviation**2 / 2)
        unit, step = np.nonzero(~np.isnan(grid[..., 0]))
        minutes = Rows(
            unit=unit,
            block=day[step],
            level=np.ones(len(unit), dtype=np.bool_),
            held_out=day[step] % 5 == 4,
            late=late[step],
            rates=grid[unit, step, :6],
            usage=usage[unit, step],
            limit=limit[unit, step],
        )
        whole = np.where(usage >= 0.9 * limit, np.nan, usage)
        changed = changes(grid[..., :6], whole, moved, classes(self.scenario))
        return Rows.joined([minutes, changed.rows(day[changed.slot], late[changed.slot])])


def true_costs(group: BrokerClass) -> FloatArray:
    """Return what a class of brokers really pays: (5, 6), in the units of load reports."""
    cost = group.cost
    message, volume = cost.cpu_us_per_msg * 1e-4, cost.cpu_ns_per_byte * 1e-7
    buffers = cost.memory_kib_per_msg_per_s / 1024.0
    framing, content = cost.wire_bytes_per_msg * 8e-3, 8e-3
    return np.array(
        [
            [
                *(message, message, volume, volume),
                *(cost.cpu_us_per_topic_s * 1e-4, cost.cpu_us_per_connection_s * 1e-4),
            ],
            [
                *(buffers, buffers, 0.0, 0.0),
                *(cost.memory_kib_per_topic / 1024.0, cost.memory_kib_per_connection / 1024.0),
            ],
            [0.0] * 6,
            [framing, 0.0, content, 0.0, 0.0, 0.0],
            [0.0, framing, 0.0, content, 0.0, 0.0],
        ]
    )


def classes(played: Scenario) -> list[int]:
    """Return the class of each broker."""
    return [number for number, group in enumerate(played.brokers) for _ in range(group.count)]


def simulated(played: Scenario, seed: int) -> Grid:
    """Return what was seen of a month."""
    grid = Grid(played)
    strategy = Strategy.parse(PAIR)
    simulate(played, planner_for(played, strategy), strategy=PAIR, seed=seed, witness=grid)
    return grid
