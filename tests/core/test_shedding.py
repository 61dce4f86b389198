"""What a strategy says where it sheds nothing; `test_vectors` has what it sheds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from small_view import bundle, heaviest, make_view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.fields import Fields
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load import BundleStats
from loadmanager.core.memory import MEMORY, Memory, RoundMemory
from loadmanager.core.placement import LeastLongTermMessageRate, LeastResourceUsageWithWeight
from loadmanager.core.plan import Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.rates import Rates
from loadmanager.core.shedding import (
    SHEDDERS,
    AvgShedder,
    JointShedder,
    OverloadShedder,
    Shed,
    Shedder,
    ThresholdShedder,
    TransferShedder,
    UniformLoadShedder,
)
from loadmanager.core.shedding.offload import divided
from loadmanager.core.splitting.finder import SplitRules, find_splits
from loadmanager.core.splitting.positions import SPLIT_ALGORITHMS, SplitAsk, SplitLimits, TopicLoad

MIB = 1024.0 * 1024.0
EVERY = sorted({*SHEDDERS.values()}, key=lambda kind: kind.__name__)


def reasons(shed: Shed) -> dict[str, Reason]:
    return {refusal.subject: refusal.reason for refusal in shed.refusals}


def test_thresholds_mean_is_blind_to_an_idle_broker_unless_the_lower_boundary_is_on() -> None:
    busy = {f"b{n}:1": (0.8, {10 * n + k: 30 * MIB for k in range(3)}) for n in range(10)}
    view = make_view({**busy, "idle:1": (0.0, {})})
    assert ThresholdShedder().shed(view, Memory()).offers == ()
    shed = ThresholdShedder(lower_boundary=True, min_bytes_per_s=0.0).shed(view, Memory())
    assert [offer.source for offer in shed.offers] == ["b0:1"]
    picky = ThresholdShedder(lower_boundary=True, min_bytes_per_s=100 * MIB)
    assert reasons(picky.shed(view, Memory()))["b0:1"] is Reason.BELOW_MINIMUM


def test_the_lower_boundary_needs_someone_low() -> None:
    view = make_view({"a:1": (0.5, {1: MIB, 2: MIB}), "b:1": (0.5, {3: MIB, 4: MIB})})
    shed = ThresholdShedder(lower_boundary=True).shed(view, Memory())
    assert reasons(shed)[""] is Reason.WITHIN_THRESHOLD


def test_a_cluster_without_load_or_brokers_is_idle() -> None:
    for view in (make_view({}), make_view({"a:1": (0.0, {1: 1.0})})):
        assert reasons(ThresholdShedder().shed(view, Memory())) == {"": Reason.CLUSTER_IDLE}


@pytest.mark.parametrize("shedder", [ThresholdShedder(min_bytes_per_s=0.0), OverloadShedder()])
def test_a_sole_bundle_stays_and_so_do_resting_ones(shedder: Shedder) -> None:
    brokers = {"a:1": (0.99, {1: MIB}), "b:1": (0.98, {2: MIB, 3: MIB}), "c:1": (0.1, {})}
    view = make_view(brokers, recently_moved=[bundle(2), bundle(3), bundle(77)])
    shed = shedder.shed(view, Memory())
    assert shed.offers == ()
    assert reasons(shed) == {
        "a:1": Reason.TOO_FEW_BUNDLES,
        "b:1": Reason.NO_BUNDLE_FITS,
        "c:1": Reason.WITHIN_THRESHOLD,
    }


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({1: 50_000.0}, Reason.TOO_FEW_BUNDLES),
        ({1: 1000.0, 2: 1000.0}, Reason.BELOW_MINIMUM),
        ({1: 25_000.0, 2: 25_000.0}, Reason.NO_BUNDLE_FITS),
    ],
)
def test_uniform_says_why_the_busiest_keeps_it(sizes: dict[int, float], reason: Reason) -> None:
    view = make_view({"a:1": (0.5, sizes), "b:1": (0.5, {9: 1000.0})})
    assert reasons(UniformLoadShedder().shed(view, Memory()))["a:1"] is reason


def test_uniform_needs_brokers_that_are_uneven() -> None:
    even = make_view({"a:1": (0.5, {1: 9.0}), "b:1": (0.5, {2: 9.0})})
    for view, reason in ((make_view({}), Reason.TOO_FEW_BROKERS), (even, Reason.WITHIN_THRESHOLD)):
        assert reasons(UniformLoadShedder().shed(view, Memory())) == {"": reason}


def rated(scores: tuple[int, ...]) -> ClusterView:
    """Return brokers named for their scores, with messages in proportion."""
    return make_view(
        {
            f"s{score}x{place}:1": (score / 100, {100 * place + k: score * 10.0 for k in range(10)})
            for place, score in enumerate(scores)
        }
    )


def test_avg_leaves_a_broker_without_a_partner_alone() -> None:
    shed = AvgShedder().shed(rated((20, 30, 52, 70, 80)), Memory())
    assert reasons(shed)["s52x2:1"] is Reason.WITHIN_THRESHOLD


def test_avg_waits_for_two_high_or_eight_low_hits() -> None:
    for scores, rounds, share in (((20, 80), 2, 0.2), ((60, 80), 8, 0.5)):
        view, memory = rated(scores), Memory()
        for number in range(1, rounds + 1):
            shed = AvgShedder(min_msgs_per_s=0, max_share=share).shed(view, memory)
            memory = shed.memory
            assert bool(shed.offers) == (number == rounds)
            pending = reasons(shed).get("s80x1:1")
            assert (pending is Reason.HITS_PENDING) == (number < rounds)
        assert (memory.high_hits, memory.low_hits) == ({}, {})


@pytest.mark.parametrize(
    ("least", "reason"), [(1000, Reason.BELOW_MINIMUM), (100, Reason.NO_BUNDLE_FITS)]
)
def test_avg_says_why_a_pair_stays_uneven(least: int, reason: Reason) -> None:
    shedder = AvgShedder(high_hits=1, max_share=0.05, min_msgs_per_s=least)
    assert reasons(shedder.shed(rated((20, 80)), Memory()))["s80x1:1"] is reason


def test_transfer_moves_half_the_difference_to_the_emptiest() -> None:
    view = heaviest({"a:1": (0.9, [10.0, 20.0, 30.0, 30.0]), "b:1": (0.1, [1.0])})
    shed = TransferShedder(hits=0).shed(view, Memory())
    # Half of 0.8 is 0.4 of 0.9: 40 of the 90 bytes/s, here 10 + 20.
    assert [(offer.source, offer.target) for offer in shed.offers] == [("a:1", "b:1")] * 2
    assert shed.spread is not None
    assert shed.spread.mean == pytest.approx(0.5)
    assert shed.spread.std == pytest.approx(0.4)
    named = TransferShedder(hits=0, transfer=False).shed(view, Memory())
    assert {offer.target for offer in named.offers} == {None}
    none = TransferShedder(hits=0, brokers_per_round=0).shed(view, Memory())
    assert none.refusals[0].reason is Reason.HITS_PENDING


@pytest.mark.parametrize(
    ("view", "memory", "reason"),
    [
        (heaviest({}), Memory(), Reason.TOO_FEW_BROKERS),
        (heaviest({"a:1": (0.9, []), "b:1": (0.1, [])}, seen_s=-900.0), Memory(),
         Reason.LOAD_OUTDATED),
        (heaviest({"a:1": (0.9, [])}), Memory(shed_at_s={BrokerId("a:1"): 900.0}),
         Reason.COOLING_DOWN),
        (heaviest({"a:1": (float("nan"), []), "b:1": (0.1, [])}), Memory(), Reason.LOAD_UNKNOWN),
        (heaviest({"a:1": (0.9, []), "b:1": (0.1, [1.0])}), Memory(), Reason.LOAD_UNKNOWN),
        (heaviest({"a:1": (0.9, [1.0]), "b:1": (0.1, [1.0])}), Memory(), Reason.TOO_FEW_BUNDLES),
        (heaviest({"a:1": (0.9, [0.0, 0.0]), "b:1": (0.1, [1.0])}), Memory(),
         Reason.TOO_FEW_BUNDLES),
        (heaviest({"a:1": (0.5, [1.0, 2.0]), "b:1": (0.5, [2.0, 1.0])}), Memory(),
         Reason.HITS_PENDING),
    ],
)  # fmt: skip
def test_transfer_says_why_nothing_moves(view: ClusterView, memory: Memory, reason: Reason) -> None:
    shed = TransferShedder(hits=0).shed(view, memory)
    assert (shed.offers, shed.refusals[0].reason) == ((), reason)


SPACE = Namespace("t/n")


def only(broker: str) -> Policies:
    isolation = IsolationPolicy(namespaces=(SPACE,), primary=(broker,))
    return Policies(isolation={"one": isolation})


@pytest.mark.parametrize(
    ("policies", "settings", "moves"),
    [
        (Policies(anti_affinity={Namespace("t/other"): "g"}), {}, 1),
        (Policies(), {"excluded_namespaces": frozenset({SPACE})}, 0),
        (Policies(anti_affinity={SPACE: "g"}), {}, 0),
        (only("."), {}, 0),
        (only("."), {"restricted_too": True}, 1),
        (only("a"), {"restricted_too": True}, 0),
    ],
)
def test_a_round_transfers_what_policies_and_settings_allow(
    policies: Policies, settings: dict[str, Any], moves: int
) -> None:
    emas = {key: {"a:1": 0.9, "b:1": 0.1} for key in ("load_ema", "bytes_ema")}
    view = make_view({"a:1": (0.9, {1: 2.0, 2: 7.0}), "b:1": (0.1, {3: 1.0})}, columns=emas)
    shedder = TransferShedder(hits=0, **settings)
    planner = Planner(shedder=shedder, settings=PlannerSettings(settle_s=0.0))
    view = replace(view, policies=policies)
    assert len(planner.round(view, RoundMemory(), np.random.default_rng(0)).moves) == moves


def test_transfer_does_not_swap_where_it_may_not() -> None:
    view = heaviest({"a:1": (0.9, [60.0, 80.0]), "b:1": (0.3, [0.0, 10.0, 20.0, 30.0])})
    rules = TransferShedder(hits=0, target_std=0.1, transfer=False)
    assert rules.shed(view, Memory()).offers == ()
    swapping = replace(rules, transfer=True)
    assert bundle(100) not in {offer.bundle for offer in swapping.shed(view, Memory()).offers}
    bare = replace(view, top_bundles={BrokerId("a:1"): view.top_bundles[BrokerId("a:1")]})
    assert swapping.shed(bare, Memory()).offers == ()


def test_division_by_nothing_is_what_floating_point_says() -> None:
    assert (divided(1.0, 2.0), divided(-1.0, 0.0)) == (0.5, -math.inf)
    assert math.isnan(divided(0.0, 0.0))


clusters = st.dictionaries(
    st.integers(1, 9).map(lambda port: f"b:{port}"),
    st.tuples(
        st.floats(0.0, 1.5), st.dictionaries(st.integers(0, 40), st.floats(0.0, 1e8), max_size=6)
    ),
    max_size=7,
)


@given(brokers=clusters, kind=st.sampled_from(EVERY))
@example(brokers={"b:1": (2.2250738585e-313, {0: 1.0})}, kind=JointShedder)
def test_an_offer_is_of_a_bundle_its_broker_has_and_only_once(
    brokers: dict[str, tuple[float, dict[int, float]]], kind: type[Shedder]
) -> None:
    view, memory = make_view(brokers), Memory()
    for _ in range(9):
        shed = kind().shed(view, memory)
        memory = MEMORY.read(Fields("/m", MEMORY.to_json(shed.memory)))
        assert memory == shed.memory
        offered = [(offer.source, offer.bundle) for offer in shed.offers]
        assert len(set(offered)) == len(offered)
        for offer in shed.offers:
            assert offer.bundle in view.bundles_of(offer.source)
            assert offer.target != offer.source
        assert kind().shed(view, memory) == kind().shed(view, memory)


@example(brokers={"b:1": (0.0, {0: 2.2250738585e-313}), "b:2": (0.0, {0: 1.0})}, kind=JointShedder)
@given(brokers=clusters, kind=st.sampled_from(EVERY))
def test_where_nothing_is_offered_there_is_a_reason(
    brokers: dict[str, tuple[float, dict[int, float]]], kind: type[Shedder]
) -> None:
    shed = kind().shed(make_view(brokers), Memory())
    assert shed.offers or shed.refusals or not brokers


TWO = {"a:1": (0.75, {1: 64.0, 2: 36.0}), "b:1": (0.25, {3: 50.0})}


def offered(shedder: Shedder, view: ClusterView, memory: Memory | None = None) -> int:
    return len(shedder.shed(view, memory or Memory()).offers)


@pytest.mark.parametrize(
    ("shedder", "offers"),
    [
        (OverloadShedder(overloaded=0.75), 1),
        (OverloadShedder(overloaded=0.7500001), 0),
        # At the mean and the threshold.
        (ThresholdShedder(threshold=0.25, min_bytes_per_s=0.0), 1),
        (ThresholdShedder(threshold=0.2500001, min_bytes_per_s=0.0), 0),
        # The need: 100 bytes/s times the five points beyond the threshold.
        (ThresholdShedder(threshold=0.25, min_bytes_per_s=5.0), 1),
        (ThresholdShedder(threshold=0.25, min_bytes_per_s=5.0000001), 0),
    ],
)
def test_what_is_exactly_at_a_threshold_is_shed(shedder: Shedder, offers: int) -> None:
    assert offered(shedder, make_view(TWO)) == offers


def test_a_need_that_is_met_exactly_takes_no_further_bundle() -> None:
    sizes = {1: 5.0, 2: 5.0, 3: 90.0}
    view = make_view({"a:1": (0.75, sizes), "b:1": (0.25, {9: 1.0})})
    resting = replace(view, recently_moved=frozenset({view.bundles_of(BrokerId("a:1"))[2]}))
    assert offered(ThresholdShedder(threshold=0.25, min_bytes_per_s=0.0), resting) == 1


@pytest.mark.parametrize(("low", "offers"), [(0.25, 0), (0.125, 1)])
def test_a_broker_exactly_at_the_lower_boundary_is_not_low(low: float, offers: int) -> None:
    high = (1.5 - low) / 2
    busy = {f"h{n}:1": (high, {2 * n: 64.0, 2 * n + 1: 36.0}) for n in range(2)}
    view = make_view({**busy, "low:1": (low, {9: 1.0})})
    shedder = ThresholdShedder(threshold=0.25, lower_boundary=True, min_bytes_per_s=0.0)
    assert offered(shedder, view) == offers


LEADING = UniformLoadShedder(
    rate_difference_percent=50.0,
    throughput_ratio=1.5,
    min_msgs_per_s=0,
    min_bytes_per_s=0,
    max_share=0.5,
)


@pytest.mark.parametrize(
    ("given", "offers"),
    [
        ({}, 0),
        ({"rate_difference_percent": 49.0}, 1),
        ({"rate_difference_percent": 0.0}, 0),
        ({"rate_difference_percent": 0.0, "throughput_ratio": 1.25}, 1),
        ({"rate_difference_percent": 0.0, "throughput_ratio": 0.0}, 0),
    ],
)
def test_a_lead_of_exactly_the_difference_is_allowed(given: dict[str, float], offers: int) -> None:
    view = make_view({"a:1": (0.5, {1: 15.0, 2: 135.0}), "b:1": (0.5, {3: 100.0})})
    assert offered(replace(LEADING, **given), view) == offers  # type: ignore[arg-type]  # settings by name


def test_a_bundle_of_exactly_the_need_moves_if_that_is_the_minimum() -> None:
    view = make_view({"a:1": (0.5, {1: 50.0, 2: 150.0}), "b:1": (0.5, {3: 100.0})})
    shedder = UniformLoadShedder(max_share=0.5, min_msgs_per_s=50)
    assert offered(shedder, view) == 1
    assert offered(replace(shedder, min_msgs_per_s=51), view) == 0
    assert offered(replace(shedder, max_bundles=0), view) == 0


def test_a_pair_exactly_at_a_threshold_has_reached_it() -> None:
    low = AvgShedder(low_threshold_points=50.0, high_threshold_points=51.0)
    assert low.shed(make_view(TWO), Memory()).memory.low_hits == {"a:1": 1, "b:1": 1}
    assert low.shed(make_view(TWO), Memory()).memory.high_hits == {}
    high = replace(low, high_threshold_points=50.0)
    assert high.shed(make_view(TWO), Memory()).memory.high_hits == {"a:1": 1, "b:1": 1}
    assert replace(low, low_threshold_points=50.1).shed(make_view(TWO), Memory()).memory == Memory()


def test_a_pair_moves_bundles_of_exactly_the_need_but_not_the_minimum_itself() -> None:
    view = make_view({"a:1": (0.75, {1: 32.0, 2: 132.0}), "b:1": (0.25, {3: 100.0})})
    shedder = AvgShedder(high_hits=1, max_share=0.5, min_msgs_per_s=31, min_bytes_per_s=31)
    assert offered(shedder, view) == 1
    assert offered(replace(shedder, min_msgs_per_s=32), view) == 1
    assert offered(replace(shedder, min_msgs_per_s=32, min_bytes_per_s=32), view) == 0


def test_a_broker_exactly_at_the_threshold_still_takes_bundles() -> None:
    rows, bundle = np.arange(2), BundleId("t/n/0xf0000000_0xffffffff")
    scores = LeastLongTermMessageRate(overloaded=0.75).scores(make_view(TWO), rows)
    assert scores.tolist() == [100.0, 50.0]
    placement = LeastResourceUsageWithWeight(difference=0.25)
    assert placement.rank(make_view(TWO), rows, bundle, Memory()).best.tolist() == [1]


def pair(
    loads: tuple[float, float],
    tops: tuple[list[float], list[float]] = ([16.0, 16.0, 32.0], [1.0]),
    **emas: float,
) -> ClusterView:
    """Return two brokers seen at second 1024, as TransferShedder looks at them at 2048."""
    given = dict(zip(("a:1", "b:1"), zip(loads, tops, strict=True), strict=True))
    bytes_ema = {"a:1": 64.0, "b:1": emas.get("b", 64.0)}
    return heaviest(given, now_s=2048.0, seen_s=1024.0, bytes_ema=bytes_ema)


def transferred(view: ClusterView, memory: Memory | None = None, **settings: float) -> Shed:
    given = {"hits": 0, "target_std": 0.125, **settings}
    return TransferShedder(**given).shed(view, memory or Memory())  # type: ignore[arg-type]  # settings by name


HALVES = pair((0.75, 0.25))
LEAST, WIDE = {"hits": 5}, {"hits": 5, "target_std": 1.0}


@pytest.mark.parametrize(
    ("view", "settings", "rounds"),
    [
        pytest.param(HALVES, {"hits": 5, "target_std": 0.25}, 0, id="spread at the target"),
        pytest.param(HALVES, {"hits": 5, "target_std": 0.2499}, 1, id="spread above the target"),
        pytest.param(pair((0.5625, 0.5), b=3.9), LEAST, 1, id="traffic below the least share"),
        pytest.param(pair((0.5625, 0.5), b=4.0), LEAST, 0, id="traffic at the least share"),
        # The least share of a mean of 0.5 is 0.5 times 0.5 with so wide a target.
        pytest.param(pair((0.75, 0.25)), WIDE, 0, id="load at the least share of the mean"),
        pytest.param(pair((0.8, 0.2)), WIDE, 1, id="load below the least share of the mean"),
    ],
)
def test_at_bounds_it_is_even(view: ClusterView, settings: dict[str, Any], rounds: int) -> None:
    assert transferred(view, **settings).memory.rounds_over == rounds


def test_load_data_of_exactly_its_life_still_counts() -> None:
    assert transferred(HALVES).offers
    assert transferred(HALVES, load_ttl_s=1024.0).offers
    assert transferred(HALVES, load_ttl_s=1023.0).spread is None


def test_a_report_exactly_the_delay_after_a_move_is_late_enough() -> None:
    memory = Memory(shed_at_s={BrokerId("a:1"): 896.0})
    assert transferred(HALVES, memory, shedding_delay_s=128.0).memory.shed_at_s == {}
    assert transferred(HALVES, memory, shedding_delay_s=129.0).memory == memory


def test_a_bundle_that_exactly_fills_the_limit_moves() -> None:
    # Half of the difference is 0.25 of 0.5: half of the 64 bytes/s.
    shed = transferred(pair((0.5, 0.0)))
    assert len(shed.offers) == 2


def test_load_exactly_at_the_overload_threshold_is_not_overloaded() -> None:
    # Seven brokers at 0.5 and one at 1.0: the mean is 0.5625, the spread about 0.165.
    base = make_view({f"b{n}:1": (0.5, {}) for n in range(8)})
    ema = np.where(np.arange(8) == 7, 1.0, 0.5)
    brokers = replace(base.brokers, load_ema=ema, bytes_ema=np.full(8, 64.0))
    view = replace(base, brokers=brokers)
    for overloaded, std, rounds in ((0.9375, 0.1875, 1), (1.0, 0.1875, 0), (0.9375, 0.4375, 0)):
        shed = transferred(view, hits=5, overloaded=overloaded, target_std=std)
        assert shed.memory.rounds_over == rounds


@pytest.mark.parametrize(
    ("largest", "back", "swaps"),
    [
        # Of 128 and 64 bytes/s, 64 for 31 leave 95 and 97: the target would be the fuller.
        (64.0, 31.0, False),
        # 64 for 32 leave 96 and 96, as full, but 96 is exactly 0.75 of 128.
        (64.0, 32.0, False),
        # 65 for 33 are no different; 65 for 32.5 leave 95.5 and 96.5.
        (65.0, 33.0, False),
        (65.0, 32.5, False),
        # With 56 on the other side, 64 for 28 leave 92 and 92.
        (64.0, 28.0, True),
    ],
)
def test_a_swap_leaves_no_target_fuller(largest: float, back: float, swaps: bool) -> None:
    other = 56.0 if swaps else 64.0
    view = pair((0.75, 0.5), ([largest, 128.0 - largest], [back, other - back]))
    offers = transferred(replace(view, moved={}), target_std=0.0625).offers
    assert sorted(offer.source for offer in offers) == (["a:1", "b:1"] if swaps else [])


def test_bundles_exactly_at_a_limit_stay_whole() -> None:
    rules = SplitRules(max_topics=5, max_sessions=4, max_msgs_per_s=3, max_mib_per_s=2)
    bundle = BundleId("t/n/0x00000000_0x0000000f")
    stats = {BrokerId("a:1"): {bundle: BundleStats(topics=5, producers=2, consumers=2)}}
    counts = {Namespace("t/n"): 127}
    at = Rates(1.5, 1.5, MIB, MIB)
    assert find_splits(rules, stats, lambda _: at, counts).chosen == ()
    over = replace(at, bytes_in_per_s=MIB + 1)
    assert len(find_splits(rules, stats, lambda _: over, counts).chosen) == 1
    over = replace(at, msgs_in_per_s=1.75)
    assert len(find_splits(rules, stats, lambda _: over, counts).chosen) == 1
    assert find_splits(rules, stats, lambda _: over, {Namespace("t/n"): 128}).chosen == ()


def test_a_part_exactly_at_its_limit_is_not_cut_further() -> None:
    topics = [TopicLoad(16 * number, 32.0, 0.0) for number in range(4)]
    limits = SplitLimits(max_msgs_per_s=64, difference_percent=100)
    cut = SPLIT_ALGORITHMS["flow_or_qps_equally_divide"]
    # 128 in all is exactly twice the limit, which is enough; each part holds 64.
    assert cut(SplitAsk(0, 64, topics), limits) == (25,)
    assert cut(SplitAsk(0, 64, topics), replace(limits, difference_percent=101)) is None
