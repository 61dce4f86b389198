"""What bundles cost by a learned model: on their broker, on others, and where it knows little."""

import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Listing
from loadmanager.core.cost.document import ClassCosts, CostDocument, Quality, Term
from loadmanager.core.cost.learned import LearnedCost
from loadmanager.core.cost.traffic_share import TrafficShare
from loadmanager.core.cost.trust import distrust
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport
from loadmanager.core.load_tracker import view_of
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Cause, Offer, Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.scores import BANDWIDTH_IN, CPU, MEMORY
from loadmanager.core.shedding import Shed
from loadmanager.core.snapshot.decoding import decode_snapshot
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.core.snapshot.encoding import encode_snapshot

NameBundle = Callable[..., BundleId]
A, B = BrokerId("a:1"), BrokerId("b:1")
LIMIT = (1000.0, 100.0, 0.0, 100.0, 0.0)


def exactly(value: float) -> Term:
    return Term(value, value, value)


def class_costs(cpu_per_msg: float, brokers: tuple[BrokerId, ...] = ()) -> ClassCosts:
    return ClassCosts(
        resources={"cpu": {"msgs_in_per_s": exactly(cpu_per_msg), "connections": exactly(1.0)}},
        brokers=brokers,
        minutes=1000,
        typical={"msgs_in_per_s": 1000.0},
    )


GOOD = Quality(mape=0.05, coverage=0.9, held_out_minutes=100)
FAST_AND_SLOW = CostDocument(
    cluster="standalone",
    made_at_ms=0,
    since_ms=0,
    until_ms=0,
    classes={"fast": class_costs(0.1), "slow": class_costs(0.2)},
    quality={"fast": {"cpu": GOOD}, "slow": {"cpu": GOOD}},
)


def load(
    broker: BrokerId,
    broker_class: str,
    cpu: float,
    bundles: Mapping[BundleId, float],
    **more: Any,
) -> BrokerLoad:
    """Return a broker whose bundles have so many messages in, and one byte each."""
    total = sum(bundles.values())
    stats = {name: BundleStats(msgs_in_per_s=rate) for name, rate in bundles.items()}
    given: dict[str, Any] = {
        "usage": (cpu, 50.0, 0.0, 60.0, 0.0),
        "limit": LIMIT,
        "totals": Rates(total, 0.0, total, 0.0),
        "listing": Listing.of(stats),
        "broker_class": broker_class,
        **more,
    }
    return BrokerLoad(broker=broker, **given)


def view(*loads: BrokerLoad) -> ClusterView:
    averages = {}
    for one in loads:
        for name, rate in zip(one.listing.names, one.listing.rates[:, 0].tolist(), strict=True):
            rates = Rates(rate, 0.0, rate, 0.0)
            averages[name] = BundleAverages(Average(10, 10, rates), Average(1000, 10, rates))
    return view_of(loads, averages)


def test_bundles_cost_what_their_class_pays_for_their_messages(bundle: NameBundle) -> None:
    cluster = view(load(A, "fast", 100.0, {bundle(1): 700.0, bundle(2): 300.0}))
    assert LearnedCost(FAST_AND_SLOW).usage(cluster, bundle(1), A)[CPU] == pytest.approx(70.0)


def test_a_target_pays_by_its_own_class(bundle: NameBundle) -> None:
    cluster = view(load(A, "fast", 100.0, {bundle(1): 1000.0}), load(B, "slow", 0.0, {}))
    cost = LearnedCost(FAST_AND_SLOW)
    usage = cost.usage(cluster, bundle(1), A)
    there = cost.elsewhere(cluster, bundle(1), A, usage, np.array([0, 1]))
    assert there[:, CPU].tolist() == pytest.approx([100.0, 200.0])


def test_prices_say_for_all_bundles_at_once_what_usage_says_of_each(bundle: NameBundle) -> None:
    cluster = view(
        load(A, "fast", 100.0, {bundle(1): 700.0, bundle(2): 200.0}), load(B, "slow", 0.0, {})
    )
    cost = LearnedCost(FAST_AND_SLOW)
    prices, trusted = cost.prices(cluster.brokers)
    rates = np.array([700.0, 0.0, 700.0, 0.0, 0.0, 0.0])
    usage = cost.usage(cluster, bundle(1), A)
    there = cost.elsewhere(cluster, bundle(1), A, usage, np.array([1]))
    assert (prices @ rates)[:, CPU].tolist() == pytest.approx([usage[CPU], there[0, CPU]])
    assert trusted.tolist() == [[True, False, False, False, False]] * 2


def test_connections_cost_what_they_cost(bundle: NameBundle) -> None:
    stats = BundleStats(msgs_in_per_s=1000.0, producers=30, consumers=20)
    cluster = view(
        replace(load(A, "fast", 150.0, {bundle(1): 1000.0}), listing=Listing.of({bundle(1): stats}))
    )
    assert LearnedCost(FAST_AND_SLOW).usage(cluster, bundle(1), A)[CPU] == pytest.approx(150.0)


def test_bundles_of_a_broker_add_up_to_what_it_uses_beyond_its_background(
    bundle: NameBundle,
) -> None:
    background = {A: {"cpu": exactly(80.0)}}
    document = replace(FAST_AND_SLOW, backgrounds=background)
    busy = load(A, "fast", 380.0, {bundle(1): 2000.0, bundle(2): 1000.0})
    cost = LearnedCost(document)
    used = [cost.usage(view(busy), bundle(number), A)[CPU] for number in (1, 2)]
    assert sum(used) == pytest.approx(300.0)
    assert used[0] == pytest.approx(2 * used[1])
    # A broker that shows more than its class pays more for each message, but not at once all:
    # (420 + 100) / (300 + 100) = 1.3 times.
    slower = replace(busy, usage=(500.0, 50.0, 0.0, 60.0, 0.0))
    assert cost.usage(view(slower), bundle(1), A)[CPU] == pytest.approx(200.0 * 1.3)


def test_a_broker_far_from_its_class_is_followed_only_so_far(bundle: NameBundle) -> None:
    cost = LearnedCost(FAST_AND_SLOW)
    idle = view(load(A, "fast", 0.0, {bundle(1): 9000.0, bundle(2): 1.0}))
    assert cost.usage(idle, bundle(1), A)[CPU] == 0.0, "no more than the broker uses"
    rows = np.array([0])
    assert cost.elsewhere(idle, bundle(1), A, np.zeros(5), rows)[0, CPU] == pytest.approx(450.0)
    other = view(load(A, "fast", 1000.0, {bundle(1): 1000.0}))
    assert cost.usage(other, bundle(1), A)[CPU] == pytest.approx(200.0)


def test_an_unmeasured_resource_is_taken_from_the_terms_alone(bundle: NameBundle) -> None:
    dumb = load(A, "fast", 0.0, {bundle(1): 1000.0}, limit=(0.0,) * 5)
    cost = LearnedCost(FAST_AND_SLOW)
    there = cost.elsewhere(view(dumb), bundle(1), A, np.zeros(5), np.array([0]))
    assert there[0, CPU] == pytest.approx(100.0)


def test_traffic_shares_stand_in_where_nothing_was_learned(bundle: NameBundle) -> None:
    cluster = view(
        load(A, "fast", 100.0, {bundle(1): 700.0, bundle(2): 300.0}),
        load(B, "unheard of", 100.0, {bundle(3): 1000.0}),
    )
    cost, shares = LearnedCost(FAST_AND_SLOW), TrafficShare()
    learned, share = cost.usage(cluster, bundle(1), A), shares.usage(cluster, bundle(1), A)
    assert learned[BANDWIDTH_IN] == share[BANDWIDTH_IN] == pytest.approx(42.0)
    assert learned[MEMORY] == 0.0
    usage = cost.usage(cluster, bundle(3), B)
    assert usage.tolist() == shares.usage(cluster, bundle(3), B).tolist()
    there = cost.elsewhere(cluster, bundle(1), A, learned, np.array([1]))
    assert there.tolist() == [learned.tolist()]


def test_an_orphan_costs_what_it_would_cost_brokers_on_the_average(bundle: NameBundle) -> None:
    cluster = view(
        load(A, "fast", 100.0, {bundle(1): 1000.0}),
        load(B, "slow", 200.0, {bundle(2): 1000.0}),
    )
    cost = LearnedCost(FAST_AND_SLOW)
    assert cost.usage(cluster, bundle(1), None)[CPU] == pytest.approx(150.0)
    nowhere = view(load(A, "else", 100.0, {bundle(1): 1000.0}))
    share = TrafficShare().usage(nowhere, bundle(1), None)
    assert cost.usage(nowhere, bundle(1), None).tolist() == share.tolist()


def test_a_bundle_never_measured_costs_what_traffic_shares_say(bundle: NameBundle) -> None:
    cluster = view(load(A, "fast", 100.0, {bundle(1): 1000.0}), load(B, "slow", 0.0, {}))
    cost, rows = LearnedCost(FAST_AND_SLOW), np.array([0, 1])
    usage = cost.usage(cluster, bundle(9), None)
    assert usage.tolist() == TrafficShare().usage(cluster, bundle(9), None).tolist()
    there = cost.elsewhere(cluster, bundle(9), None, usage, rows)
    assert there.tolist() == [usage.tolist()] * 2


def test_a_broker_without_a_class_is_of_the_one_it_was_seen_in(bundle: NameBundle) -> None:
    classes = {"fast": class_costs(0.1), "slow": class_costs(0.2, brokers=(B,))}
    document = replace(FAST_AND_SLOW, classes=classes)
    cluster = view(load(A, "", 100.0, {bundle(1): 1000.0}), load(B, "", 200.0, {bundle(2): 1000.0}))
    cost = LearnedCost(document)
    assert cost.usage(cluster, bundle(2), B)[CPU] == pytest.approx(200.0)
    there = cost.elsewhere(cluster, bundle(2), B, np.full(5, 7.0), np.array([0]))
    assert there[0, CPU] == 7.0
    unnamed = replace(document, classes={"": class_costs(0.3)}, quality={"": {"cpu": GOOD}})
    there = LearnedCost(unnamed).elsewhere(cluster, bundle(2), B, np.zeros(5), np.array([0]))
    assert there[0, CPU] == pytest.approx(150.0), "(100 + 100) / (300 + 100) of 300"


def test_a_broker_that_history_never_saw_has_the_background_of_its_like(
    bundle: NameBundle,
) -> None:
    classes = {"fast": class_costs(0.1, brokers=(B, BrokerId("c:1"), BrokerId("d:1")))}
    document = replace(
        FAST_AND_SLOW,
        classes=classes,
        quality={"fast": {"cpu": GOOD}},
        backgrounds={
            B: {"cpu": exactly(300.0)},
            BrokerId("c:1"): {"cpu": exactly(40.0), "memory": exactly(1.0)},
            BrokerId("d:1"): {"memory": exactly(1.0), "cpu": exactly(50.0)},
        },
    )
    cluster = view(load(A, "fast", 150.0, {bundle(1): 1000.0}))
    assert LearnedCost(document).usage(cluster, bundle(1), A)[CPU] == pytest.approx(100.0)


def test_an_empty_document_falls_back_everywhere(bundle: NameBundle) -> None:
    empty = LearnedCost(replace(FAST_AND_SLOW, classes={}, quality={}))
    cluster = view(load(A, "fast", 100.0, {bundle(1): 1000.0}))
    share = TrafficShare().usage(cluster, bundle(1), A)
    assert empty.usage(cluster, bundle(1), A).tolist() == share.tolist()


def test_what_was_asked_before_changes_no_answer(bundle: NameBundle) -> None:
    first = view(load(A, "fast", 100.0, {bundle(1): 1000.0}))
    other = view(load(A, "slow", 300.0, {bundle(1): 1000.0}), load(B, "fast", 0.0, {}))
    used = LearnedCost(FAST_AND_SLOW)
    for cluster in (first, other, first.after(bundle(1), None, A, np.ones(5)), other, first):
        fresh = LearnedCost(FAST_AND_SLOW)
        assert used.usage(cluster, bundle(1), A).tolist() == (
            fresh.usage(cluster, bundle(1), A).tolist()
        )
    assert used == fresh
    assert pickle.loads(pickle.dumps(used)) == fresh  # noqa: S301 - our own bytes


def test_what_was_projected_onto_brokers_changes_no_cost(bundle: NameBundle) -> None:
    cluster = view(
        load(A, "fast", 200.0, {bundle(1): 1000.0, bundle(2): 1000.0}), load(B, "slow", 0.0, {})
    )
    cost, rows = LearnedCost(FAST_AND_SLOW), np.array([1])
    moved = cluster.after(bundle(1), A, B, np.array([100.0, 0, 0, 0, 0]))
    before = cost.elsewhere(cluster, bundle(2), A, np.zeros(5), rows)
    assert cost.elsewhere(moved, bundle(2), A, np.zeros(5), rows).tolist() == before.tolist()


class OffersOne:
    """Offers one bundle, whatever the view."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer

    def shed(self, _view: ClusterView, memory: Memory) -> Shed:
        """Offer it."""
        return Shed((self._offer,), (), memory)


def test_nothing_moves_to_a_broker_that_would_be_worse_off_with_it(bundle: NameBundle) -> None:
    """The slow broker has room for what the bundle costs here, not for what it costs there."""
    bundles = {bundle(number): 1000.0 for number in range(1, 7)}
    cluster = replace(
        view(
            load(A, "fast", 0.0, bundles, usage=(600.0, 0.0, 0.0, 0.0, 0.0)),
            load(B, "slow", 0.0, {bundle(9): 2000.0}, usage=(400.0, 0.0, 0.0, 0.0, 0.0)),
        ),
        membership_changed_s=-1e6,
    )
    planner = Planner(shedder=OffersOne(Offer(bundle(1), A, Cause.OVERLOADED)))
    rng = np.random.default_rng(0)
    plan = planner.round(cluster, RoundMemory(), rng)
    assert [move.target for move in plan.moves] == [B]
    plan = replace(planner, cost=LearnedCost(FAST_AND_SLOW)).round(cluster, RoundMemory(), rng)
    assert not plan.moves
    assert Reason.NO_IMPROVEMENT in {refusal.reason for refusal in plan.refusals}


Change = Callable[[CostDocument], CostDocument]


def with_quality(**changes: Any) -> CostDocument:
    quality = {"fast": {"cpu": replace(GOOD, **changes)}}
    return replace(FAST_AND_SLOW, quality=quality)


def with_terms(**terms: Term) -> CostDocument:
    costs = replace(class_costs(0.1), resources={"cpu": terms})
    return replace(FAST_AND_SLOW, classes={"fast": costs})


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (FAST_AND_SLOW, ""),
        (with_quality(held_out_minutes=29), "tested on 29 minutes, fewer than 30"),
        (replace(FAST_AND_SLOW, quality={}), "tested on 0 minutes, fewer than 30"),
        (with_quality(mape=0.31), "wrong by 31%, more than 30%"),
        (with_quality(baseline_mape=0.04), "wrong by 5%, traffic shares by 4%"),
        (with_quality(baseline_mape=0.06), ""),
        (with_quality(coverage=0.5), "intervals held 50%, fewer than 60%"),
        (with_terms(), "typical traffic costs nothing of it"),
        (with_terms(topics=exactly(1.0)), "typical traffic costs nothing of it"),
        (
            with_terms(msgs_in_per_s=Term(0.1, 0.04, 0.16)),
            "known to within 60%, more than 50%",
        ),
        (with_terms(msgs_in_per_s=exactly(0.1), topics=Term(1.0, 0.0, 9.0)), ""),
        (with_quality(typical_error=0.6), "known to within 60%, more than 50%"),
        (
            replace(
                with_terms(msgs_in_per_s=Term(0.1, 0.0, 1.0)),
                quality={"fast": {"cpu": replace(GOOD, typical_error=0.1)}},
            ),
            "",
        ),
    ],
)
def test_what_is_not_good_enough_is_not_decided_by(document: CostDocument, why: str) -> None:
    assert distrust(document, "fast", "cpu") == why


def test_prices_of_all_brokers_are_those_of_single_questions(bundle: NameBundle) -> None:
    cluster = view(
        load(A, "fast", 150.0, {bundle(1): 1000.0}), load(B, "unheard of", 10.0, {bundle(2): 5.0})
    )
    cost = LearnedCost(FAST_AND_SLOW)
    prices, trusted = cost.prices(cluster.brokers)
    rates = np.array([1000.0, 0.0, 1000.0, 0.0, 0.0, 0.0])
    there = cost.elsewhere(cluster, bundle(1), A, np.full(5, -1.0), np.array([0, 1]))
    assert np.where(trusted, prices @ rates, -1.0).tolist() == there.tolist()
    assert trusted[:, CPU].tolist() == [True, False]


def test_a_planner_computes_with_a_document_unless_it_is_not_to() -> None:
    assert Planner().costing(FAST_AND_SLOW).cost == LearnedCost(FAST_AND_SLOW)
    assert Planner(cost=LearnedCost(FAST_AND_SLOW)).costing(None).cost == TrafficShare()
    for settings in (PlannerSettings(learned_costs=False), PlannerSettings(mode=Mode.PARITY)):
        assert Planner(settings=settings).costing(FAST_AND_SLOW).cost == TrafficShare()


def test_a_snapshot_with_a_spoilt_model_is_refused_or_read_without_it() -> None:
    reports = {
        A: LoadReport(
            broker=A,
            urls=BrokerUrls(http_url=""),
            sidecar_url="",
            reported_at_ms=1,
            started_at_ms=1,
        )
    }
    whole = encode_snapshot(Snapshot(reports=reports, costs=FAST_AND_SLOW))
    assert decode_snapshot("file", whole).costs == FAST_AND_SLOW
    spoilt = whole.replace(b'"costModel":{"format":1', b'"costModel":{"format":2')
    with pytest.raises(MalformedContent, match=r"costModel\.format = 2"):
        decode_snapshot("file", spoilt)
    lenient = decode_snapshot("file", spoilt, lenient=True)
    assert lenient.costs is None
    assert lenient.left_out == (
        "file: costModel.format = 2; expected 1, the only one this version knows",
    )
