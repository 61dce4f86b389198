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
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.memory import MEMORY, Memory, RoundMemory
from loadmanager.core.plan import Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.policies import IsolationPolicy, Policies
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
