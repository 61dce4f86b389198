"""Pulsar's accidents: what it does by mistake, what parity mode does, and what safe mode does.

docs/accidents.md has the table of them, with the test of each.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_view import bundle, heaviest, make_view

from loadmanager.config import ConfigError
from loadmanager.config.pulsar_import import import_settings
from loadmanager.config.strategies import filled
from loadmanager.core.bundles import Boundaries
from loadmanager.core.cluster import ClusterView, UnknownBroker
from loadmanager.core.columns import Listing
from loadmanager.core.hashing import FULL_RANGE_END, position
from loadmanager.core.ids import BrokerId, BundleId, Namespace, parse_topic
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.placement import (
    PLACEMENTS,
    LeastResourceUsageWithWeight,
    Placement,
    PlannedPlacement,
    RoundRobin,
)
from loadmanager.core.plan import Move, Reason
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.settings import with_arithmetic
from loadmanager.core.shedding import (
    AvgShedder,
    OverloadShedder,
    Shed,
    Shedder,
    ThresholdShedder,
    TransferShedder,
    UniformLoadShedder,
)
from loadmanager.core.splitting.cutting import CannotSplit, split
from loadmanager.core.splitting.finder import SplitRules, find_splits
from loadmanager.core.splitting.positions import SPLIT_ALGORITHMS, SplitAsk, SplitLimits, TopicLoad

MODES = (Mode.PARITY, Mode.SAFE)
EAGER = AvgShedder(high_hits=1, min_msgs_per_s=0, min_bytes_per_s=0)


def shed_in(mode: Mode, shedder: Shedder, view: ClusterView, memory: Memory | None = None) -> Shed:
    return with_arithmetic(shedder, like_java=mode is Mode.PARITY).shed(view, memory or Memory())


def offered(mode: Mode, shedder: Shedder, view: ClusterView) -> list[BundleId]:
    return [offer.bundle for offer in shed_in(mode, shedder, view).offers]


def planner(mode: Mode, **parts: Any) -> Planner:
    return Planner(settings=PlannerSettings(mode=mode, settle_s=0.0), **parts)


def planned(mode: Mode, shedder: Shedder, view: ClusterView) -> Plan:
    return planner(mode, shedder=shedder).round(view, RoundMemory(), np.random.default_rng(1))


def routes(moves: Sequence[Move]) -> list[tuple[BundleId, BrokerId | None, BrokerId]]:
    return [(move.bundle, move.source, move.target) for move in moves]


def why(plan: Plan) -> dict[str, Reason]:
    return {refusal.subject: refusal.reason for refusal in plan.refusals}


def test_usage_is_computed_in_32_bits_only_in_parity() -> None:
    view = make_view({"a:1": (0.8499999999, {1: 9.0, 2: 8.0}), "b:1": (0.1, {})})
    assert offered(Mode.PARITY, OverloadShedder(), view) == [bundle(1)]
    assert offered(Mode.SAFE, OverloadShedder(), view) == []


def test_where_all_are_overloaded_only_parity_passes_bundles_around() -> None:
    view = make_view({f"{b}:1": (0.9, {2 * n: 5.0, 2 * n + 1: 4.0}) for n, b in enumerate("abcd")})
    assert len(offered(Mode.PARITY, OverloadShedder(), view)) == 4
    assert planned(Mode.PARITY, OverloadShedder(), view).moves
    safe = planned(Mode.SAFE, OverloadShedder(), view)
    assert (safe.moves, len(why(safe))) == ((), 4)


def test_one_hot_bundle_goes_back_and_forth_only_in_parity() -> None:
    shedder = ThresholdShedder(min_bytes_per_s=0.0, history=0.0)
    hot = bundle(1)
    for source, target in (("a:1", "b:1"), ("b:1", "a:1")):
        other = {target: (0.1, {3: 100.0})}
        view = make_view({source: (0.9, {1: 900.0, 2: 1.0}), **other})
        assert routes(planned(Mode.PARITY, shedder, view).moves) == [(hot, source, target)]
        safe = planned(Mode.SAFE, shedder, view)
        assert (safe.moves, why(safe)[hot]) == ((), Reason.UNBALANCEABLE)


def test_bundles_without_traffic_move_only_in_parity() -> None:
    view = make_view({"a:1": (0.5, {1: 5000.0, 2: 500.0, 3: 0.0}), "b:1": (0.5, {9: 1000.0})})
    assert offered(Mode.PARITY, UniformLoadShedder(min_msgs_per_s=0), view) == [
        bundle(2),
        bundle(3),
    ]
    assert offered(Mode.SAFE, UniformLoadShedder(min_msgs_per_s=0), view) == [bundle(2)]
    # What the broker does besides is a hundred times what its bundles do.
    besides = {"a:1": {"totals": Rates(10_000.0, 0.0, 10_000.0, 0.0)}}
    view = make_view({"a:1": (0.9, {1: 100.0, 2: 0.0}), "b:1": (0.1, {9: 1.0})}, besides)
    parity = planned(Mode.PARITY, OverloadShedder(), view)
    assert {move.bundle for move in parity.moves} == {bundle(1), bundle(2)}
    safe = planned(Mode.SAFE, OverloadShedder(), view)
    assert {move.bundle for move in safe.moves} == {bundle(1)}
    assert why(safe)[bundle(2)] is Reason.NO_IMPROVEMENT


def test_the_lower_boundary_takes_a_second_step_only_in_parity() -> None:
    view = make_view({"a:1": (0.4, {1: 1.0}), "b:1": (0.4, {2: 1.0})})
    shedder = ThresholdShedder(lower_boundary=True, history=0.5)
    past = Memory(usage={BrokerId("a:1"): 0.0, BrokerId("b:1"): 0.0})
    for mode, usage in ((Mode.PARITY, 0.3), (Mode.SAFE, 0.2)):
        after = shed_in(mode, shedder, view, past).memory
        assert after.usage == pytest.approx({"a:1": usage, "b:1": usage})


@pytest.mark.parametrize(
    ("busy", "parity", "safe"),
    [
        # A fifth of 5004.5 is 1000.9: the bundle of 1000.5 fits, but not a need of 1000.
        ({1: 5004.0, 2: 1000.5}, [], [2]),
        # 600.9 taken off 1000 leave 399.1, but 400 if only 600 are.
        ({1: 4999.6, 2: 600.9, 3: 399.5}, [2, 3], [2]),
    ],
)
def test_amounts_are_cut_down_to_whole_numbers_only_in_parity(
    busy: dict[int, float], parity: list[int], safe: list[int]
) -> None:
    view = make_view({"a:1": (0.5, busy), "b:1": (0.5, {9: 1000.0})})
    shedder = UniformLoadShedder(min_msgs_per_s=0)
    assert offered(Mode.PARITY, shedder, view) == [bundle(number) for number in parity]
    assert offered(Mode.SAFE, shedder, view) == [bundle(number) for number in safe]


def test_even_brokers_of_nine_gigabytes_are_uneven_only_in_parity() -> None:
    view = make_view({"a:1": (0.5, {1: 8e9, 2: 1e9}), "b:1": (0.5, {3: 8e9, 4: 1e9})})
    assert offered(Mode.PARITY, UniformLoadShedder(), view) == [bundle(2)]
    assert offered(Mode.SAFE, UniformLoadShedder(), view) == []


def test_hits_are_spent_for_nothing_only_in_parity() -> None:
    view = make_view({"a:1": (0.9, {1: 9000.0}), "b:1": (0.1, {2: 1000.0})})
    for mode, hits in ((Mode.PARITY, {}), (Mode.SAFE, {"a:1": 1, "b:1": 1})):
        shed = shed_in(mode, EAGER, view)
        assert (shed.offers, shed.memory.high_hits) == ((), hits)


def test_a_broker_is_its_own_partner_only_in_parity() -> None:
    view = make_view({"a:1": (0.9, {1: 9.0}), "b:1": (0.5, {2: 5.0}), "c:1": (0.1, {3: 1.0})})
    shedder = AvgShedder(low_threshold_points=0.0)
    assert shed_in(Mode.PARITY, shedder, view).memory.low_hits == {"a:1": 1, "b:1": 2, "c:1": 1}
    assert shed_in(Mode.SAFE, shedder, view).memory.low_hits == {"a:1": 1, "c:1": 1}


def test_hits_of_brokers_that_left_are_kept_only_in_parity() -> None:
    view = make_view({"a:1": (0.9, {1: 9.0}), "b:1": (0.1, {2: 1.0})})
    gone = Memory(low_hits={BrokerId("gone:1"): 7}, high_hits={BrokerId("gone:1"): 1})
    for mode, kept in ((Mode.PARITY, True), (Mode.SAFE, False)):
        after = shed_in(mode, AvgShedder(), view, gone).memory
        assert ("gone:1" in after.low_hits, "gone:1" in after.high_hits) == (kept, kept)


def test_the_sole_bundle_of_a_broker_moves_only_in_parity() -> None:
    view = make_view({"a:1": (0.9, {1: 900.0}), "b:1": (0.1, {})})
    shedder = replace(EAGER, max_share=1.0)
    assert routes(planned(Mode.PARITY, shedder, view).moves) == [(bundle(1), "a:1", "b:1")]
    safe = planned(Mode.SAFE, shedder, view)
    assert (safe.moves, why(safe)[bundle(1)]) == ((), Reason.UNBALANCEABLE)


@pytest.mark.parametrize("mode", MODES)
def test_bundles_nobody_measured_are_spread_in_both_modes(mode: Mode) -> None:
    view = make_view({f"b{n}:1": (0.5, {n: 1.0}) for n in range(20)})
    made, rng, targets = planner(mode, placement=PlannedPlacement()), np.random.default_rng(1), []
    memory = RoundMemory(placement=Memory(planned={bundle(0): BrokerId("b7:1")}))
    for number in range(100, 200):
        placed = made.place(view, [bundle(number)], memory, rng)
        targets += [move.target for move in placed.moves]
        assert placed.memory.planned == memory.placement.planned
    assert len(set(targets)) > 10
    for size in (1.0, 5.0):
        other = make_view({f"b{n}:1": (0.5, {n: size}) for n in range(20)})
        (move,) = made.place(other, [bundle(0)], memory, rng).moves
        assert move.target == "b7:1"


def test_what_a_swap_brings_back_counts_always_but_in_parity() -> None:
    # 50 for 5 fill the 42.5 that may move, unless the 5 that come back leave room for more.
    view = heaviest({"a:1": (0.6, [50.0, 50.0, 70.0]), "b:1": (0.3, [5.0, 30.0])})
    plain = TransferShedder(hits=0, target_std=0.1)
    first, second = [bundle(0), bundle(100)], [bundle(1), bundle(101)]
    assert offered(Mode.PARITY, plain, view) == first
    debugging = replace(plain, count_swapped_back=True)
    assert offered(Mode.PARITY, debugging, view) == [*first, *second]
    assert offered(Mode.SAFE, plain, view) == [*first, *second]
    swaps = {(offer.source, offer.target) for offer in plain.shed(view, Memory()).offers}
    assert swaps == {("a:1", "b:1"), ("b:1", "a:1")}


def test_a_swap_takes_bundles_that_rest_only_in_parity() -> None:
    view = heaviest({"a:1": (0.9, [60.0, 80.0]), "b:1": (0.3, [10.0, 12.0, 30.0])})
    resting = frozenset(top.bundle for top in view.top_bundles[BrokerId("b:1")])
    view = replace(view, recently_moved=resting)
    shedder = TransferShedder(hits=0, target_std=0.1)
    assert resting & {*offered(Mode.PARITY, shedder, view)}
    assert offered(Mode.SAFE, shedder, view) == []


def test_a_broker_that_fell_silent_is_paired_only_in_parity() -> None:
    sizes = [10.0, 20.0, 30.0, 30.0]
    loads = {"a:1": (0.9, sizes), "b:1": (0.1, [1.0]), "c:1": (0.5, [5.0])}
    view = heaviest(loads, seen_s={"b:1": -900.0})
    shedder = TransferShedder(hits=0, target_std=0.1)
    for mode, target in ((Mode.PARITY, "b:1"), (Mode.SAFE, "c:1")):
        offers = shed_in(mode, shedder, view).offers
        assert {offer.target for offer in offers if offer.source == "a:1"} == {target}
    assert "b:1" not in {move.target for move in planned(Mode.PARITY, shedder, view).moves}


def test_the_spread_of_equal_brokers_is_no_number_only_in_parity() -> None:
    view = heaviest({f"{name}:1": (0.1, [1.0, 2.0]) for name in "abc"})
    parity, safe = (shed_in(mode, TransferShedder(), view).spread for mode in MODES)
    assert parity is not None
    assert isnan(parity.std)
    assert safe is not None
    assert safe.std == 0.0


def test_outbound_traffic_makes_a_bundle_heavy_but_in_parity() -> None:
    stats = {
        bundle(1): BundleStats(bytes_out_per_s=9e6),
        bundle(2): BundleStats(bytes_in_per_s=2e5),
    }
    for like_java, heavy in ((True, bundle(2)), (False, bundle(1))):
        tracker = LoadTracker(weights=ResourceWeights(like_java=like_java), top_k=1)
        tracker.put(BrokerLoad(broker=BrokerId("a:1"), listing=Listing.of(stats)))
        assert [top.bundle for top in tracker.view(0.0).top_bundles[BrokerId("a:1")]] == [heavy]


def test_each_placement_takes_a_step_only_in_parity() -> None:
    view = make_view({"a:1": (0.5, {1: 1.0}), "b:1": (0.5, {2: 1.0})})
    past = Memory(usage={BrokerId("a:1"): 1.0, BrokerId("b:1"): 1.0})
    placement = LeastResourceUsageWithWeight(history=0.8)
    rng, unowned = np.random.default_rng(1), [bundle(100), bundle(101)]
    usages: dict[Mode, list[float]] = {mode: [] for mode in MODES}
    for mode in MODES:
        made = planner(mode, shedder=UniformLoadShedder(), placement=placement)
        for count in range(3):
            memory = RoundMemory(placement=past)
            after = made.round(view, memory, rng, unowned=unowned[:count]).memory
            usages[mode].append(after.placement.usage[BrokerId("a:1")])
        placed = made.place(view, unowned[:1], after, rng).memory
        assert (placed == after.placement) == (mode is Mode.SAFE)
    assert usages[Mode.SAFE] == pytest.approx([0.9, 0.9, 0.9])
    assert usages[Mode.PARITY][:2] == pytest.approx([1.0, 0.9])
    assert usages[Mode.PARITY][2] < 0.9


def test_a_broker_that_replaced_another_gets_no_turn_only_in_parity() -> None:
    view = make_view({name: (0.5, {}) for name in ("a:1", "b:1", "d:1")})
    order = tuple(map(BrokerId, ("d:1", "c:1", "b:1")))
    taken: dict[Mode, str] = {}
    for mode in MODES:
        placement = with_arithmetic(RoundRobin(), like_java=mode is Mode.PARITY)
        memory = Memory(turn=2, turn_order=order)
        best = placement.rank(view, np.arange(3), BundleId("t/n/x"), memory).best
        taken[mode] = view.brokers.names[int(best[0])]
    assert taken == {Mode.PARITY: "b:1", Mode.SAFE: "d:1"}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", sorted({*PLACEMENTS.values()}, key=repr))
def test_without_a_candidate_there_is_a_reason_in_both_modes(
    kind: type[Placement], mode: Mode
) -> None:
    view = make_view({"a:1": (0.5, {})}, {"a:1": {"draining": True}})
    made = planner(mode, placement=kind())
    placed = made.place(view, [bundle(1)], RoundMemory(), np.random.default_rng(1))
    assert placed.moves == []
    assert [refusal.reason for refusal in placed.refusals] == [Reason.NO_CANDIDATE]
    with pytest.raises(UnknownBroker, match="b:1 has no load report"):
        view.rows([BrokerId("b:1")])


@pytest.mark.parametrize("like_java", [True, False])
def test_a_report_adds_no_sample_in_either_mode(like_java: bool) -> None:
    tracker = LoadTracker(weights=ResourceWeights(like_java=like_java))
    for _ in range(10):
        tracker.put(
            BrokerLoad(broker=BrokerId("a:1"), listing=Listing.of({bundle(1): BundleStats()}))
        )
    assert bundle(1) not in tracker.averages()
    tracker.sample()
    assert tracker.averages()[bundle(1)].short.samples == 1


def test_every_accident_of_the_document_is_told_at_its_place_and_tried() -> None:
    root = Path(__file__).parents[2]
    document = (root / "docs" / "accidents.md").read_text()
    code = "\n".join(path.read_text() for path in (root / "loadmanager").rglob("*.py"))
    tests = Path(__file__).read_text()
    rows = re.findall(r"(?m)^\| `([a-z0-9-]+)` \|.*\| `(\w+)` \|$", document)
    assert len(rows) == len(re.findall(r"(?m)^\| `", document)) > 20
    for name, promise in rows:
        assert f"`{name}`" in code
        assert f"def test_{promise}(" in tests


SPACE = Namespace("t/n")


@pytest.mark.parametrize(("mib_per_s", "splits"), [(2047, 0), (2048, 2), (4096, 1)])
def test_a_limit_of_two_gigabytes_splits_everything_only_in_parity(
    mib_per_s: int, splits: int
) -> None:
    reports = {BrokerId("a:1"): {bundle(number): BundleStats(topics=2) for number in (1, 2)}}
    traffic = {bundle(1): Rates(0.0, 0.0, 1.0)}
    for like_java, count in ((True, splits), (False, 0)):
        rules = SplitRules(max_mib_per_s=mib_per_s, like_java=like_java)
        found = find_splits(rules, reports, traffic.get, {SPACE: 2})
        assert len(found.chosen) == count


@pytest.mark.parametrize("like_java", [True, False])
def test_the_heaviest_are_split_in_whatever_order_they_are_reported(like_java: bool) -> None:
    rules = SplitRules(max_topics=1, max_bundles=6, like_java=like_java)
    rates = {bundle(number): Rates(0.0, 0.0, float(number % 3)) for number in range(5)}
    listed = [(bundle(number), BundleStats(topics=5)) for number in range(5)]
    for order in (listed, listed[::-1]):
        found = find_splits(rules, {BrokerId("a:1"): dict(order)}, rates.get, {SPACE: 4})
        assert [one.bundle for one in found.chosen] == [bundle(2), bundle(1)]


@pytest.mark.parametrize(
    ("algorithm", "ask", "parity", "safe"),
    [
        # Both topics at 5 stay on one side, and the other has none.
        ("topic_count", SplitAsk(0, 99, [TopicLoad(5), TopicLoad(5), TopicLoad(9)]), (5,), (7,)),
        ("topic_count", SplitAsk(5, 99, [TopicLoad(5), TopicLoad(5)]), (5,), None),
        ("topic_count", SplitAsk(5, 99, [TopicLoad(5), TopicLoad(6)]), (5,), (6,)),
        ("given", SplitAsk(0, 99, [TopicLoad(5), TopicLoad(9)], positions=(7, 7)), (7, 7), (7,)),
        (
            "traffic",
            SplitAsk(0, 99, [TopicLoad(5, 9.0, 0.0)] * 3 + [TopicLoad(8, 9.0, 0.0)]),
            (6, 6, 7),
            (7,),
        ),
        (
            "traffic",
            SplitAsk(
                9, FULL_RANGE_END, [TopicLoad(FULL_RANGE_END - n, 9.0, 0.0) for n in range(2)]
            ),
            (FULL_RANGE_END,),
            (),
        ),
    ],
)
def test_cuts_that_part_nothing_are_made_only_in_parity(
    algorithm: str, ask: SplitAsk, parity: tuple[int, ...], safe: tuple[int, ...] | None
) -> None:
    name = {
        "topic_count": "topic_count_equally_divide",
        "given": "specified_positions_divide",
        "traffic": "flow_or_qps_equally_divide",
    }[algorithm]
    limits = SplitLimits(max_msgs_per_s=10)
    assert SPLIT_ALGORITHMS[name](ask, replace(limits, like_java=True)) == parity
    assert SPLIT_ALGORITHMS[name](ask, limits) == safe
    if len(set(parity)) < len(parity) or not all(ask.lower < cut < ask.upper for cut in parity):
        bounds = sorted({0, ask.lower, ask.upper, FULL_RANGE_END})
        whole = Boundaries(SPACE, tuple(bounds))
        with pytest.raises(CannotSplit):
            split(whole, whole.at(ask.lower), parity)


def test_the_topic_with_the_last_hash_is_found_in_both_modes() -> None:
    topic = parse_topic("persistent://public/default/t-dukgt2d")
    assert position(topic, "crc32") == FULL_RANGE_END
    boundaries = Boundaries.even(topic.namespace, 4)
    assert boundaries.at(FULL_RANGE_END) == boundaries.bundles[-1]


def test_a_misspelt_weight_wins_only_where_pulsars_keys_are_read() -> None:
    right, wrong = "loadBalancerBandwidthInResourceWeight", "loadBalancerBandwithInResourceWeight"
    both = {right: 1.0, wrong: 0.5}
    found = {"loadBalancerLoadSheddingStrategy": "ThresholdShedder", right: "1.0", wrong: "0.5"}
    assert f"{right} = 0.5" in import_settings(found, "localhost").toml()
    assert filled(ThresholdShedder, {right: 1.0}, "[x]").weights.bandwidth_in == 1.0
    with pytest.raises(ConfigError, match=f"{wrong} is unknown; did you mean {right}"):
        filled(ThresholdShedder, both, "[x]")
