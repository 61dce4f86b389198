from collections.abc import Mapping

import numpy as np
import pytest
from small_view import make_view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.memory import Memory
from loadmanager.core.placement import (
    PLACEMENTS,
    LeastResourceUsageWithWeight,
    Placement,
    PlannedPlacement,
    RoundRobin,
    choose,
)

BUNDLE = BundleId("t/n/0xf0000000_0xffffffff")


def best(
    placement: Placement, view: ClusterView, memory: Memory | None = None
) -> tuple[list[str], Memory]:
    rows = np.arange(len(view.brokers.names))
    ranking = placement.rank(view, rows, BUNDLE, memory or Memory())
    return [view.brokers.names[row] for row in ranking.best.tolist()], ranking.memory


def used(usage: Mapping[str, float]) -> ClusterView:
    return make_view({name: (cpu, {place: 1.0}) for place, (name, cpu) in enumerate(usage.items())})


@pytest.mark.parametrize(
    ("usage", "difference", "want"),
    [
        ((0.10, 0.30, 0.80), 0.1, [0, 1]),
        ((0.40, 0.40, 0.40, 0.40, 0.69, 0.70), 0.1, [0, 1, 2, 3, 4, 5]),
        ((0.10, 0.5999, 0.70, 0.80, 0.80), 0.0, [0, 1]),
    ],
)
def test_least_usage_takes_those_well_below_the_mean_as_in_the_documents(
    usage: tuple[float, ...], difference: float, want: list[int]
) -> None:
    names = [f"b{place}:1" for place in range(len(usage))]
    view = used(dict(zip(names, usage, strict=True)))
    placement = LeastResourceUsageWithWeight(difference=difference)
    assert best(placement, view)[0] == [names[place] for place in want]
    watched = placement.watch(view, Memory())
    assert watched.usage == pytest.approx(dict(zip(names, usage, strict=True)))
    assert best(placement, view, watched) == ([names[place] for place in want], watched)


def test_least_usage_remembers_but_not_for_a_broker_that_is_idle() -> None:
    view = make_view({"a:1": (0.5, {1: 1.0}), "b:1": (0.5, {}), "c:1": (0.5, {2: 0.0})})
    past = dict.fromkeys(map(BrokerId, ("a:1", "b:1", "c:1", "other:1")), 1.0)
    placement = LeastResourceUsageWithWeight(history=0.8)
    remembered = placement.watch(view, Memory(usage=past)).usage
    assert remembered == pytest.approx({"a:1": 0.9, "b:1": 0.5, "c:1": 0.5, "other:1": 1.0})


def test_a_planned_bundle_goes_where_it_was_planned_while_that_may_take_it() -> None:
    view = used({"a:1": 0.5, "b:1": 0.5})
    for target, want in (("b:1", ["b:1"]), ("gone:1", ["a:1", "b:1"])):
        memory = Memory(planned={BUNDLE: BrokerId(target)})
        assert best(PlannedPlacement(), view, memory)[0] == want
    assert best(PlannedPlacement(), view)[0] == ["a:1", "b:1"]


def test_round_robin_takes_turns_and_wraps_around() -> None:
    view, memory = used({"a:1": 0.1, "b:1": 0.9}), Memory()
    taken = []
    for _ in range(4):
        got, memory = best(RoundRobin(), view, memory)
        taken += got
    assert taken == ["a:1", "b:1", "a:1", "b:1"]
    assert best(RoundRobin(), view, Memory(turn=2**31 - 1))[1].turn == 0


@pytest.mark.parametrize("kind", sorted({*PLACEMENTS.values()}, key=repr))
def test_without_candidates_there_is_no_best(kind: type[Placement]) -> None:
    ranking = kind().rank(used({"a:1": 0.1}), np.zeros(0, dtype=int), BUNDLE, Memory())
    assert choose(ranking.best, np.random.default_rng(1)) is None


def test_chance_picks_among_the_best_and_the_seed_decides() -> None:
    rows = np.arange(50)
    picked = [choose(rows, np.random.default_rng(seed)) for seed in range(30)]
    assert picked == [choose(rows, np.random.default_rng(seed)) for seed in range(30)]
    assert len(set(picked)) > 10
