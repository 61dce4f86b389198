"""What holds for every plan of the safe mode, whatever the cluster."""

from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.cluster import ClusterView
from loadmanager.core.cost import TrafficShare
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.projection import loads
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import AvgShedder, Shedder, ThresholdShedder, UniformLoadShedder

MakeView = Callable[..., ClusterView]
WEIGHTS = ResourceWeights()


def decide(view: ClusterView, shedder: Shedder, memory: RoundMemory, **settings: Any) -> Plan:
    planner = Planner(shedder=shedder, settings=PlannerSettings(**settings))
    return planner.round(view, memory, np.random.default_rng(7))


sizes = st.dictionaries(st.integers(0, 30), st.floats(1.0, 1000.0), min_size=1, max_size=8)
clusters = st.lists(st.tuples(st.floats(0.02, 1.2), sizes), min_size=2, max_size=6)
shedders = st.sampled_from(
    [
        ThresholdShedder(min_bytes_per_s=0.0, history=0.0),
        AvgShedder(low_hits=1, high_hits=1, min_msgs_per_s=0, min_bytes_per_s=0),
        UniformLoadShedder(min_msgs_per_s=0, min_bytes_per_s=0),
    ]
)


Load = tuple[float, dict[int, float]]


def distinct(drawn: list[Load]) -> dict[str, Load]:
    return {
        f"b:{n}": (cpu, {100 * n + k: size for k, size in held.items()})
        for n, (cpu, held) in enumerate(drawn, 1)
    }


@given(drawn=clusters, shedder=shedders)
def test_the_projected_maximum_never_grows_and_no_bundle_moves_twice(
    make_view: MakeView, drawn: list[Load], shedder: Shedder
) -> None:
    view = make_view(distinct(drawn), now_s=100.0)
    plan = decide(view, shedder, RoundMemory())
    assert len({move.bundle for move in plan.moves}) == len(plan.moves)
    peak = float(loads(view, WEIGHTS).max())
    for move in plan.moves:
        usage = TrafficShare().usage(view, move.bundle, move.source)
        view = view.after(move.bundle, move.source, move.target, usage)
        after = float(loads(view, WEIGHTS).max())
        assert after <= peak + 1e-6
        peak = after


@given(drawn=clusters, shedder=shedders)
def test_under_steady_traffic_moves_come_to_an_end_even_without_rest(
    make_view: MakeView, drawn: list[Load], shedder: Shedder
) -> None:
    held = {name: dict(load[1]) for name, load in distinct(drawn).items()}
    memory, now_s, calm = RoundMemory(), 100.0, 0
    while calm < 3:
        brokers = {name: (sum(on.values()) / 4000, on) for name, on in held.items()}
        seen = {name: {"seen_s": 0.0 if now_s < 200 else now_s - 100} for name in held}
        view = make_view(brokers, seen, now_s=now_s)
        plan = decide(view, shedder, memory, cool_down_s=0.0)
        memory, now_s = plan.memory, now_s + 100.0
        calm = 0 if plan.moves else calm + 1
        assert now_s < 10_000.0
        for move in plan.moves:
            assert move.source is not None
            number = int(move.bundle.rpartition("/0x")[2][:8], 16) // 16
            held[move.target][number] = held[move.source].pop(number)
