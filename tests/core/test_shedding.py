"""The examples of Pulsar's documents and proposals, with their numbers."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.cluster import ClusterView, TopBundle, TransferLimits
from loadmanager.core.fields import Fields
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.load_tracker import view_of
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Cause, Offer, Reason
from loadmanager.core.rates import Rates
from loadmanager.core.shedding import (
    SHEDDERS,
    AvgShedder,
    OverloadShedder,
    Shed,
    Shedder,
    ThresholdShedder,
    TransferShedder,
    UniformLoadShedder,
)
from loadmanager.core.shedding.offload import divided

MakeView = Callable[..., ClusterView]
NameBundle = Callable[..., BundleId]
MIB = 1024.0 * 1024.0
EVERY = sorted({*SHEDDERS.values()}, key=lambda kind: kind.__name__)


def reasons(shed: Shed) -> dict[str, Reason]:
    return {refusal.subject: refusal.reason for refusal in shed.refusals}


def test_threshold_sheds_the_broker_at_forty_of_forty_ten_ten(
    make_view: MakeView, bundle: NameBundle
) -> None:
    sizes = dict.fromkeys(range(4), 30 * MIB)
    view = make_view({"a:1": (0.4, sizes), "b:1": (0.1, {8: 1.0}), "c:1": (0.1, {9: 1.0})})
    shed = ThresholdShedder(threshold=0.09, min_bytes_per_s=0.0).shed(view, Memory())
    # Mean 0.2: the excess over 0.29 is 0.11, so 0.16 of 120 MiB/s go: one bundle of 30.
    assert shed.offers == (Offer(bundle(0), BrokerId("a:1"), Cause.OVERLOADED),)
    assert reasons(shed) == {"b:1": Reason.WITHIN_THRESHOLD, "c:1": Reason.WITHIN_THRESHOLD}


def test_thresholds_history_misjudges_as_the_proposal_says() -> None:
    # PIP-364: 90 and 10, evened out to 50 and 50, are still believed to be 86 and 14.
    shedder, memory = ThresholdShedder(), Memory()
    for usage in ((0.9, 0.1), (0.5, 0.5), (0.14, 0.86)):
        loads = [
            BrokerLoad(broker=BrokerId(name), usage=(used, 0, 0, 0, 0), limit=(1.0, 0, 0, 0, 0))
            for name, used in zip(("a:1", "b:1"), usage, strict=True)
        ]
        memory = shedder.shed(view_of(loads, {}), memory).memory
        remembered = [round(memory.usage[BrokerId(name)], 3) for name in ("a:1", "b:1")]
        assert remembered == {0.9: [0.9, 0.1], 0.5: [0.86, 0.14], 0.14: [0.788, 0.212]}[usage[0]]


def test_thresholds_mean_is_blind_to_an_idle_broker_unless_the_lower_boundary_is_on(
    make_view: MakeView,
) -> None:
    busy = {f"b{n}:1": (0.8, {10 * n + k: 30 * MIB for k in range(3)}) for n in range(10)}
    view = make_view({**busy, "idle:1": (0.0, {})})
    assert ThresholdShedder().shed(view, Memory()).offers == ()
    shed = ThresholdShedder(lower_boundary=True, min_bytes_per_s=0.0).shed(view, Memory())
    assert [offer.source for offer in shed.offers] == ["b0:1"]
    picky = ThresholdShedder(lower_boundary=True, min_bytes_per_s=100 * MIB)
    assert reasons(picky.shed(view, Memory()))["b0:1"] is Reason.BELOW_MINIMUM


def test_the_lower_boundary_needs_someone_low(make_view: MakeView) -> None:
    view = make_view({"a:1": (0.5, {1: MIB, 2: MIB}), "b:1": (0.5, {3: MIB, 4: MIB})})
    shed = ThresholdShedder(lower_boundary=True).shed(view, Memory())
    assert reasons(shed)[""] is Reason.WITHIN_THRESHOLD


def test_a_cluster_without_load_or_brokers_is_idle(make_view: MakeView) -> None:
    for view in (make_view({}), make_view({"a:1": (0.0, {1: 1.0})})):
        assert reasons(ThresholdShedder().shed(view, Memory())) == {"": Reason.CLUSTER_IDLE}


@pytest.mark.parametrize("shedder", [ThresholdShedder(min_bytes_per_s=0.0), OverloadShedder()])
def test_a_sole_bundle_stays_and_so_do_resting_ones(
    make_view: MakeView, bundle: NameBundle, shedder: Shedder
) -> None:
    brokers = {"a:1": (0.99, {1: MIB}), "b:1": (0.98, {2: MIB, 3: MIB}), "c:1": (0.1, {})}
    view = make_view(brokers, recently_moved=[bundle(2), bundle(3), bundle(77)])
    shed = shedder.shed(view, Memory())
    assert shed.offers == ()
    assert reasons(shed) == {
        "a:1": Reason.TOO_FEW_BUNDLES,
        "b:1": Reason.NO_BUNDLE_FITS,
        "c:1": Reason.WITHIN_THRESHOLD,
    }


def test_overload_sheds_pointlessly_where_all_are_overloaded(make_view: MakeView) -> None:
    view = make_view({f"b{n}:1": (0.9, {2 * n: 5.0, 2 * n + 1: 4.0}) for n in range(3)})
    offers = OverloadShedder().shed(view, Memory()).offers
    assert [offer.source for offer in offers] == ["b0:1", "b1:1", "b2:1"]


def test_uniform_sheds_at_fifty_against_thirty_thousand_messages(make_view: MakeView) -> None:
    # (50 - 30) / 30 is 66 percent, above 50; a fifth of the 20,000 between them moves.
    view = make_view({"a:1": (0.5, {1: 46_500.0, 2: 3_500.0}), "b:1": (0.5, {3: 30_000.0})})
    shed = UniformLoadShedder().shed(view, Memory())
    assert [offer.bundle for offer in shed.offers] == [view.bundles_of(BrokerId("a:1"))[1]]


def test_uniform_sheds_at_450_against_100_megabytes(make_view: MakeView) -> None:
    few = Rates(1.0, 0.0, 450 * MIB, 0.0)
    view = make_view(
        {"a:1": (0.5, {1: 50 * MIB, 2: 400 * MIB}), "b:1": (0.5, {3: 100 * MIB})},
        {"a:1": {"totals": few}, "b:1": {"totals": replace(few, bytes_in_per_s=100 * MIB)}},
    )
    shed = UniformLoadShedder().shed(view, Memory())
    assert [offer.bundle for offer in shed.offers] == [view.bundles_of(BrokerId("a:1"))[0]]
    assert reasons(UniformLoadShedder(throughput_ratio=4.6).shed(view, Memory())) == {
        "": Reason.WITHIN_THRESHOLD
    }


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ({1: 50_000.0}, Reason.TOO_FEW_BUNDLES),
        ({1: 1000.0, 2: 1000.0}, Reason.BELOW_MINIMUM),
        ({1: 25_000.0, 2: 25_000.0}, Reason.NO_BUNDLE_FITS),
    ],
)
def test_uniform_says_why_the_busiest_keeps_its_bundles(
    make_view: MakeView, sizes: dict[int, float], reason: Reason
) -> None:
    view = make_view({"a:1": (0.5, sizes), "b:1": (0.5, {9: 1000.0})})
    assert reasons(UniformLoadShedder().shed(view, Memory()))["a:1"] is reason


def test_uniform_needs_a_broker(make_view: MakeView) -> None:
    assert reasons(UniformLoadShedder().shed(make_view({}), Memory())) == {
        "": Reason.TOO_FEW_BROKERS
    }


def rated(make_view: MakeView, scores: tuple[int, ...]) -> ClusterView:
    """Return brokers named for their scores, with messages in proportion."""
    return make_view(
        {
            f"s{score}x{place}:1": (
                score / 100,
                {100 * place + k: score * 10.0 for k in range(10)},
            )
            for place, score in enumerate(scores)
        }
    )


def test_avg_pairs_first_with_last_and_second_with_second_to_last(make_view: MakeView) -> None:
    # PIP-364: of 20, 30, 52, 70, 80 the pairs are 20 and 80, 30 and 70, both 40 apart or more.
    view = rated(make_view, (20, 30, 52, 70, 80))
    shedder = AvgShedder(high_hits=1, max_share=0.5)
    shed = shedder.shed(view, Memory())
    pairs = {(offer.source, offer.target) for offer in shed.offers}
    assert pairs == {("s80x4:1", "s20x0:1"), ("s70x3:1", "s30x1:1")}
    # Half of 8000 - 2000 messages/s is 3000: three bundles of 800.
    assert sum(offer.source == "s80x4:1" for offer in shed.offers) == 3
    assert reasons(shed)["s52x2:1"] is Reason.WITHIN_THRESHOLD
    assert shed.memory.planned == {offer.bundle: offer.target for offer in shed.offers}


def test_avg_waits_for_two_high_or_eight_low_hits(make_view: MakeView) -> None:
    for scores, rounds, share in (((20, 80), 2, 0.2), ((60, 80), 8, 0.5)):
        view, memory = rated(make_view, scores), Memory()
        for number in range(1, rounds + 1):
            shed = AvgShedder(min_msgs_per_s=0, max_share=share).shed(view, memory)
            memory = shed.memory
            assert bool(shed.offers) == (number == rounds)
            pending = reasons(shed).get("s80x1:1")
            assert (pending is Reason.HITS_PENDING) == (number < rounds)
        assert (memory.high_hits, memory.low_hits) == ({}, {})


def test_avg_starts_counting_anew_after_a_calm_round(make_view: MakeView) -> None:
    memory = AvgShedder().shed(rated(make_view, (20, 80)), Memory()).memory
    assert memory.high_hits == {"s20x0:1": 1, "s80x1:1": 1}
    calm = make_view({"s20x0:1": (0.2, {}), "s80x1:1": (0.25, {})})
    assert AvgShedder().shed(calm, memory).memory.low_hits == {}


@pytest.mark.parametrize(
    ("shedder", "reason"),
    [
        (AvgShedder(high_hits=1, max_share=0.05), Reason.BELOW_MINIMUM),
        (AvgShedder(high_hits=1, max_share=0.05, min_msgs_per_s=100), Reason.NO_BUNDLE_FITS),
    ],
)
def test_avg_says_why_a_pair_stays_uneven(
    make_view: MakeView, shedder: AvgShedder, reason: Reason
) -> None:
    assert reasons(shedder.shed(rated(make_view, (20, 80)), Memory()))["s80x1:1"] is reason


def test_avg_moves_by_throughput_where_messages_are_even(make_view: MakeView) -> None:
    view = make_view(
        {"a:1": (0.2, {1: MIB}), "b:1": (0.9, {2: 2 * MIB, 3: 20 * MIB})},
        {"a:1": {"totals": Rates(5.0, 0.0, MIB)}, "b:1": {"totals": Rates(5.0, 0.0, 22 * MIB)}},
    )
    offers = AvgShedder(high_hits=1).shed(view, Memory()).offers
    assert [offer.bundle for offer in offers] == [view.bundles_of(BrokerId("b:1"))[0]]


def moving(
    loads: dict[str, tuple[float, list[float]]], changed: dict[str, float] | None = None
) -> ClusterView:
    """Return a view for TransferShedder: load and top bundles, ascending, of each broker."""
    made, tops = [], {}
    for place, (name, (load, sizes)) in enumerate(loads.items()):
        broker = BrokerId(name)
        seen_s = (changed or {}).get(name, 1000.0)
        total = sum(sizes)
        made.append(
            BrokerLoad(
                broker=broker,
                seen_s=seen_s,
                totals=Rates(0.0, 0.0, total),
                load_ema=load,
                bytes_ema=total,
            )
        )
        tops[broker] = [
            TopBundle(bundle_id(Namespace("t/n"), 100 * place + k, 100 * place + k + 1), size)
            for k, size in enumerate(sizes)
        ]
    return replace(view_of(made, {}, now_s=1000.0), top_bundles=tops)


def test_transfer_moves_half_the_difference_to_the_emptiest() -> None:
    view = moving({"a:1": (0.9, [10.0, 20.0, 30.0, 30.0]), "b:1": (0.1, [1.0])})
    shed = TransferShedder(hits=0).shed(view, Memory())
    # Half of 0.8 is 0.4 of 0.9: 40 of the 90 bytes/s, here 10 + 20.
    assert [(offer.source, offer.target) for offer in shed.offers] == [("a:1", "b:1")] * 2
    assert shed.spread is not None
    assert shed.spread.mean == pytest.approx(0.5)
    assert shed.spread.std == pytest.approx(0.4)
    named = TransferShedder(hits=0, transfer=False).shed(view, Memory())
    assert {offer.target for offer in named.offers} == {None}


def test_transfer_waits_for_more_rounds_than_its_hits() -> None:
    view, memory = moving({"a:1": (0.9, [10.0, 20.0]), "b:1": (0.1, [1.0])}), Memory()
    for number in range(4):
        shed = TransferShedder().shed(view, memory)
        memory = shed.memory
        assert bool(shed.offers) == (number == 3)
    assert memory.rounds_over == 0


def test_transfer_swaps_a_large_bundle_for_smaller_ones() -> None:
    view = moving({"a:1": (0.9, [60.0, 80.0]), "b:1": (0.3, [10.0, 12.0, 30.0])})
    plain = TransferShedder(hits=0, target_std=0.1).shed(view, Memory())
    counted = TransferShedder(hits=0, target_std=0.1, count_swapped_back=True)
    assert {(offer.source, offer.target) for offer in plain.offers} == {
        ("a:1", "b:1"),
        ("b:1", "a:1"),
    }
    assert set(plain.offers) == set(counted.shed(view, Memory()).offers)


@pytest.mark.parametrize(
    ("view", "memory", "reason"),
    [
        (moving({}), Memory(), Reason.TOO_FEW_BROKERS),
        (moving({"a:1": (0.9, []), "b:1": (0.1, [])}, {"a:1": -900.0, "b:1": -900.0}), Memory(),
         Reason.LOAD_OUTDATED),
        (moving({"a:1": (0.9, [])}), Memory(shed_at_s={BrokerId("a:1"): 900.0}),
         Reason.COOLING_DOWN),
        (moving({"a:1": (float("nan"), []), "b:1": (0.1, [])}), Memory(), Reason.LOAD_UNKNOWN),
        (moving({"a:1": (0.9, []), "b:1": (0.1, [1.0])}), Memory(), Reason.LOAD_UNKNOWN),
        (moving({"a:1": (0.9, [1.0]), "b:1": (0.1, [1.0])}), Memory(), Reason.TOO_FEW_BUNDLES),
        (moving({"a:1": (0.9, [0.0, 0.0]), "b:1": (0.1, [1.0])}), Memory(),
         Reason.TOO_FEW_BUNDLES),
        (moving({"a:1": (0.5, [1.0, 2.0]), "b:1": (0.5, [2.0, 1.0])}), Memory(),
         Reason.HITS_PENDING),
    ],
)  # fmt: skip
def test_transfer_says_why_a_round_moves_nothing(
    view: ClusterView, memory: Memory, reason: Reason
) -> None:
    shed = TransferShedder(hits=0).shed(view, memory)
    assert (shed.offers, shed.refusals[0].reason) == ((), reason)


def test_transfer_finds_nothing_to_move_when_its_budget_of_brokers_is_zero() -> None:
    view = moving({"a:1": (0.9, [10.0, 20.0]), "b:1": (0.1, [1.0])})
    shed = TransferShedder(hits=0, brokers_per_round=0).shed(view, Memory())
    assert shed.refusals[0].reason is Reason.HITS_PENDING


def test_transfer_stops_once_the_cluster_is_even_enough() -> None:
    loads = {"a:1": (0.9, [40.0, 50.0]), "b:1": (0.5, [5.0, 45.0]), "c:1": (0.5, [5.0, 45.0])}
    view = moving({**loads, "d:1": (0.1, [4.0, 6.0])})
    shed = TransferShedder(hits=0, target_std=0.25).shed(view, Memory())
    assert {offer.source for offer in shed.offers} == {"a:1"}


def test_transfer_fills_a_broker_without_traffic_though_the_spread_is_fine() -> None:
    view = moving({"a:1": (0.4, [10.0, 10.0, 40.0]), "b:1": (0.2, [])})
    shed = TransferShedder(hits=0).shed(view, Memory())
    assert {offer.cause for offer in shed.offers} == {Cause.UNDERLOADED}


def test_transfer_relieves_an_overloaded_broker_though_the_spread_is_fine() -> None:
    calm = {f"c{n}:1": (0.5, [50.0, 50.0]) for n in range(20)}
    view = moving({"a:1": (0.99, [20.0, 20.0, 90.0]), **calm})
    shed = TransferShedder(hits=0).shed(view, Memory())
    assert {(offer.source, offer.cause) for offer in shed.offers} == {("a:1", Cause.OVERLOADED)}


def limited(view: ClusterView, **limits: object) -> Shed:
    given: dict[str, object] = {"available": frozenset(view.brokers.names), "allowed": {}, **limits}
    view = replace(view, limits=TransferLimits(**given))  # type: ignore[arg-type]  # fields by name
    return TransferShedder(hits=0).shed(view, Memory())


def test_transfer_moves_only_what_may_move() -> None:
    view = moving({"a:1": (0.9, [10.0, 20.0, 30.0, 30.0]), "b:1": (0.1, [1.0])})
    space = Namespace("t/n")
    assert len(limited(view).offers) == 2
    assert limited(view, owners={}).offers == ()
    assert limited(view, restricted=frozenset({space})).offers == ()
    assert limited(view, allowed={space: frozenset({"a:1"})}).offers == ()
    owned = {top.bundle: "a:1" for top in view.top_bundles[BrokerId("a:1")]}
    assert len(limited(view, owners=owned).offers) == 2
    excluded = TransferShedder(hits=0, excluded_namespaces=frozenset({space}))
    assert excluded.shed(view, Memory()).offers == ()
    resting = replace(view, recently_moved=frozenset(owned))
    assert TransferShedder(hits=0).shed(resting, Memory()).offers == ()


def test_transfer_does_not_swap_where_it_may_not() -> None:
    view = moving({"a:1": (0.9, [60.0, 80.0]), "b:1": (0.3, [0.0, 10.0, 20.0, 30.0])})
    rules = TransferShedder(hits=0, target_std=0.1, transfer=False)
    assert rules.shed(view, Memory()).offers == ()
    bare = replace(view, top_bundles={BrokerId("a:1"): view.top_bundles[BrokerId("a:1")]})
    assert TransferShedder(hits=0, target_std=0.1).shed(bare, Memory()).offers == ()


def test_division_by_nothing_is_what_floating_point_says() -> None:
    assert divided(1.0, 2.0) == 0.5
    assert divided(-1.0, 0.0) == float("-inf")
    assert np.isnan(divided(0.0, 0.0))


clusters = st.dictionaries(
    st.integers(1, 9).map(lambda port: f"b:{port}"),
    st.tuples(
        st.floats(0.0, 1.5), st.dictionaries(st.integers(0, 40), st.floats(0.0, 1e8), max_size=6)
    ),
    max_size=7,
)


@given(brokers=clusters, kind=st.sampled_from(EVERY))
def test_an_offer_is_of_a_bundle_its_broker_has_and_only_once(
    make_view: MakeView, brokers: dict[str, tuple[float, dict[int, float]]], kind: type[Shedder]
) -> None:
    view, memory = make_view(brokers), Memory()
    for _ in range(9):
        shed = kind().shed(view, memory)
        memory = Memory.from_fields(Fields("/m", shed.memory.to_json()))
        assert memory == shed.memory
        offered = [(offer.source, offer.bundle) for offer in shed.offers]
        assert len(set(offered)) == len(offered)
        for offer in shed.offers:
            assert offer.bundle in view.bundles_of(offer.source)
            assert offer.target != offer.source
        assert kind().shed(view, memory) == kind().shed(view, memory)


@given(brokers=clusters, kind=st.sampled_from(EVERY))
def test_where_nothing_is_offered_there_is_a_reason(
    make_view: MakeView, brokers: dict[str, tuple[float, dict[int, float]]], kind: type[Shedder]
) -> None:
    shed = kind().shed(make_view(brokers), Memory())
    assert shed.offers or shed.refusals or not brokers
