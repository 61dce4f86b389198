"""What holds for every plan, whatever the cluster: each promise as a function that checks it.

A promise takes a cluster and a shedder that hypothesis drew, and a source of further choices.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from small_view import bundle, make_view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId, range_of
from loadmanager.core.memory import RoundMemory
from loadmanager.core.placement import (
    LeastLongTermMessageRate,
    LeastResourceUsageWithWeight,
    Placement,
    PlannedPlacement,
    RoundRobin,
)
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.projection import TrafficShare, loads
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import (
    AvgShedder,
    OverloadShedder,
    Shedder,
    ThresholdShedder,
    TransferShedder,
    UniformLoadShedder,
)

WEIGHTS = ResourceWeights()
NOW_S = 100.0
LIMIT = 800.0
"""What ``make_view`` gives a broker of CPU; one of half the size has half of it."""

_CALM_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class Drawn:
    """One broker: its CPU as a fraction of `LIMIT`, its size in it, and its bundles' traffic."""

    cpu: float
    size: float
    bundles: Mapping[int, float]


Cluster = Mapping[str, Drawn]
Promise = Callable[[Cluster, Shedder, st.DataObject], None]

# Whole numbers are drawn faster than others, and odd amounts come from what is computed with them.
_sizes = st.lists(st.integers(0, 1000), min_size=1, max_size=6)
clusters = st.lists(
    st.tuples(st.integers(2, 120), st.sampled_from((0.5, 1.0, 2.0)), _sizes), min_size=2, max_size=5
).map(
    lambda drawn: {
        f"b:{n}": Drawn(percent / 99, size, {100 * n + k: one / 3 for k, one in enumerate(sizes)})
        for n, (percent, size, sizes) in enumerate(drawn, 1)
    }
)
shedders = st.sampled_from(
    [
        ThresholdShedder(min_bytes_per_s=0.0, history=0.0),
        ThresholdShedder(min_bytes_per_s=0.0, threshold=0.0, lower_boundary=True),
        OverloadShedder(overloaded=0.2),
        AvgShedder(
            low_hits=1, high_hits=1, low_threshold_points=1.0, min_msgs_per_s=0, min_bytes_per_s=0
        ),
        UniformLoadShedder(min_msgs_per_s=0, min_bytes_per_s=0, max_share=1.0),
        TransferShedder(hits=0, target_std=0.01, shedding_delay_s=0.0),
    ]
)
_placements: st.SearchStrategy[Placement] = st.sampled_from(
    [LeastLongTermMessageRate(), LeastResourceUsageWithWeight(), PlannedPlacement(), RoundRobin()]
)
_modes = st.sampled_from(tuple(Mode))


def seen(cluster: Cluster, changed: Mapping[str, Any] | None = None, **given: Any) -> ClusterView:
    brokers = {name: (one.cpu, one.bundles) for name, one in cluster.items()}
    fields = {
        name: {
            "limit": (LIMIT * one.size, 0.0, 0.0, 0.0, 0.0),
            **(changed or {}).get(name, {}),
        }
        for name, one in cluster.items()
    }
    averages = {
        "load_ema": {name: one.cpu / one.size for name, one in cluster.items()},
        "bytes_ema": {name: sum(one.bundles.values()) for name, one in cluster.items()},
    }
    return make_view(brokers, fields, now_s=NOW_S, columns=averages, **given)


def decide(
    view: ClusterView,
    shedder: Shedder,
    memory: RoundMemory | None = None,
    unowned: tuple[BundleId, ...] = (),
    **settings: Any,
) -> Plan:
    planner = Planner(shedder=shedder, settings=PlannerSettings(**settings))
    return planner.round(view, memory or RoundMemory(), np.random.default_rng(7), unowned=unowned)


def _anything(cluster: Cluster, data: st.DataObject) -> ClusterView:
    """Return a view in which some brokers drain and some bundles are under way."""
    draining = data.draw(st.sets(st.sampled_from(sorted(cluster))), label="draining")
    changed = {name: {"draining": True} for name in draining}
    return seen(cluster, changed, in_flight=_under_way(cluster, data))


def _under_way(cluster: Cluster, data: st.DataObject) -> dict[BundleId, BrokerId]:
    numbers = [number for one in cluster.values() for number in one.bundles]
    chosen = data.draw(st.sets(st.sampled_from(numbers), max_size=3), label="under way")
    targets = st.sampled_from(list(map(BrokerId, sorted(cluster))))
    return {bundle(number): data.draw(targets) for number in sorted(chosen)}


def moves_each_bundle_at_most_once(cluster: Cluster, shedder: Shedder, data: st.DataObject) -> None:
    """No bundle moves twice, to where it is, from who has it not, or while it is under way."""
    view = _anything(cluster, data)
    unowned = tuple(BundleId(f"t/lost/0x0000000{n}_0x0000000{n + 1}") for n in range(3))
    plan = decide(view, shedder, unowned=unowned, mode=data.draw(_modes))
    assert len({move.bundle for move in plan.moves}) == len(plan.moves)
    for move in plan.moves:
        assert move.bundle not in view.moved
        assert move.source == view.listed_owner(move.bundle)
        assert move.target != move.source
        assert not view.brokers.draining[view.row(move.target)]


def never_raises_the_projected_maximum(
    cluster: Cluster, shedder: Shedder, data: st.DataObject
) -> None:
    """In safe mode no move leaves the fullest broker of the projection fuller."""
    margin = data.draw(st.sampled_from((0.0, 0.02, 0.2)), label="margin")
    view = seen(cluster)
    plan = decide(view, shedder, margin=margin)
    peak = float(loads(view, WEIGHTS).max())
    for move in plan.moves:
        assert move.source is not None
        before = float(loads(view, WEIGHTS)[view.row(move.source)])
        usage = TrafficShare().usage(view, move.bundle, move.source)
        view = view.after(move.bundle, move.source, move.target, usage)
        after = loads(view, WEIGHTS)
        assert float(after[view.row(move.target)]) + margin <= before + 1e-9
        assert float(after.max()) <= peak + 1e-9
        peak = float(after.max())


def moves_nothing_in_a_balanced_cluster(
    cluster: Cluster, shedder: Shedder, data: st.DataObject
) -> None:
    """In safe mode nothing moves where brokers are less than the margin apart."""
    margin = 0.05
    parts = st.floats(0.0, 0.99)
    balanced = {
        name: Drawn((0.4 + margin * data.draw(parts)) * one.size, one.size, one.bundles)
        for name, one in cluster.items()
    }
    assert decide(seen(balanced), shedder, margin=margin).moves == ()


def keeps_its_budgets(cluster: Cluster, shedder: Shedder, data: st.DataObject) -> None:
    """In safe mode no round moves more, at a broker or in all, than it may."""
    few = st.integers(0, 4)
    in_round, in_hour, at_broker, before = (data.draw(few) for _ in range(4))
    most_bytes = data.draw(st.sampled_from((0.0, 500.0, 1e9)), label="bytes/s")
    under_way = _under_way(cluster, data)
    view = seen(cluster, in_flight=under_way)
    moved_at_s = {BundleId(f"t/x/{n}"): NOW_S - 60.0 for n in range(before)}
    plan = decide(
        view,
        shedder,
        RoundMemory(moved_at_s=moved_at_s),
        margin=0.0,
        moves_per_round=in_round,
        moves_per_hour=in_hour,
        in_flight_per_broker=at_broker,
        bytes_per_s_per_round=most_bytes,
    )
    assert len(plan.moves) <= min(in_round, max(in_hour - before, 0))
    traffic = sum(float(view.short_rates(move.bundle)[2:].sum()) for move in plan.moves)
    assert len(plan.moves) <= 1 or traffic <= most_bytes + 1e-6
    parties: Counter[BrokerId | None] = Counter(
        name for move in plan.moves for name in (move.source, move.target)
    )
    already: Counter[BrokerId | None] = Counter(view.moved.values())
    already.update(view.listed_owner(bundle) for bundle in view.moved)
    assert all(already[name] + count <= at_broker for name, count in parties.items())


def decides_the_same_on_the_same(cluster: Cluster, shedder: Shedder, data: st.DataObject) -> None:
    """The same view, memory and seed give the same plan, in any mode, with any placement."""
    view = _anything(cluster, data)
    settings = PlannerSettings(mode=data.draw(_modes))
    planner = Planner(shedder=shedder, placement=data.draw(_placements), settings=settings)
    lost = (BundleId("t/lost/0x00000000_0x00000001"),)
    first, second = (
        planner.round(view, RoundMemory(), np.random.default_rng(7), unowned=lost) for _ in range(2)
    )
    assert first == second


def comes_to_rest_under_steady_traffic(
    cluster: Cluster, shedder: Shedder, data: st.DataObject
) -> None:
    """In safe mode moves come to an end, even if no bundle has to rest after one."""
    del data
    held = {name: dict(one.bundles) for name, one in cluster.items()}
    memory, now_s, calm = RoundMemory(), NOW_S, 0
    while calm < _CALM_ROUNDS:
        used = {name: sum(on.values()) / 4000 for name, on in held.items()}
        drawn = {name: Drawn(used[name], 1.0, on) for name, on in held.items()}
        reported = {name: {"seen_s": 0.0 if now_s == NOW_S else now_s - 50} for name in held}
        view = replace(seen(drawn, reported), now_s=now_s)
        plan = decide(view, shedder, memory, cool_down_s=0.0, settle_s=0.0)
        memory, now_s = plan.memory, now_s + 100.0
        calm = 0 if plan.moves else calm + 1
        assert now_s < 100 * NOW_S
        for move in plan.moves:
            assert move.source is not None
            number = range_of(move.bundle)[0] // 16
            held[move.target][number] = held[move.source].pop(number)


PROMISES: tuple[Promise, ...] = (
    moves_each_bundle_at_most_once,
    never_raises_the_projected_maximum,
    moves_nothing_in_a_balanced_cluster,
    keeps_its_budgets,
    decides_the_same_on_the_same,
    comes_to_rest_under_steady_traffic,
)
