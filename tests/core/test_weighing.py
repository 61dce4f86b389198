"""What `explain` says of the joint strategy: costs and their source, uses, paybacks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from joint_cluster import CPU_PER_BYTE, CPU_PER_MSG, Broker, Traffic, learned, open_limits, view
from small_view import bundle

from loadmanager.core.cluster import ClusterView
from loadmanager.core.explaining import Explanation, Known, explain_broker, explain_bundle
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.joint.deciding import learned_from
from loadmanager.core.joint.state import JointState
from loadmanager.core.joint.unit_costs import doubt
from loadmanager.core.joint.weighing import BundleCost, CostSource, Weigher, Weighing
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.placement import JointPlacement
from loadmanager.core.plan import Reason
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.scores import CPU, ResourceWeights
from loadmanager.core.shedding import JointShedder

A, B, C = (BrokerId(f"{key}:1") for key in "abc")
BUNDLE = bundle(0)
BROKERS = {
    "a:1": Broker(bundles=range(10), background=0.05, network_kbit=1e7),
    "b:1": Broker(bundles=range(10, 14), background=0.05, speed=1.5, network_kbit=1e7),
    "c:1": Broker(bundles=range(14, 18), background=0.05, network_kbit=1e7),
}
PLANNER = Planner(shedder=JointShedder(), placement=JointPlacement())


def traffic(minute: int) -> dict[int, Traffic]:
    rng = np.random.default_rng(minute)
    return {
        k: Traffic(msgs=rng.uniform(4000, 6000), size=float(rng.choice([100, 2000])))
        for k in range(18)
    }


def seen(minute: int = 20, **given: Any) -> ClusterView:
    return view(BROKERS, traffic(minute), now_s=60.0 * minute, **given)


def after(minutes: int, brokers: Mapping[str, Broker] = BROKERS) -> JointState:
    return learned(view(brokers, traffic(m), now_s=60.0 * m) for m in range(1, minutes + 1))


LEARNED = after(20)


def explained(
    subject: str = BUNDLE, *, planner: Planner = PLANNER, plan: Plan | None = None, **given: Any
) -> Explanation:
    """Return what is said of a bundle, or a broker, after twenty minutes."""
    memory = RoundMemory(shedder=Memory(joint=LEARNED))
    refusals: dict[str, list[Any]] = {}
    for one in plan.refusals if plan else ():
        refusals.setdefault(one.subject, []).append(one)
    known = Known(view=seen(**given), planner=planner, memory=memory, refusals=refusals)
    return told_of(known, subject)


def told_of(known: Known, subject: str = BUNDLE) -> Explanation:
    if "/" in subject:
        return explain_bundle(known, BundleId(subject), ())
    return explain_broker(known, BrokerId(subject), ())


def unlearned(
    brokers: Mapping[str, Broker], now: Mapping[int, Traffic] | None = None, subject: str = BUNDLE
) -> Explanation:
    at = view(brokers, now, now_s=1200.0)
    known = Known(view=at, planner=PLANNER, memory=RoundMemory(), refusals={})
    return told_of(known, subject)


def weighing(subject: str = BUNDLE, **given: Any) -> Weighing:
    found = explained(subject, **given).weighing
    assert found is not None
    return found


def weighed(state: JointState) -> Weighing:
    at = seen()
    limits = open_limits(at)
    weigher = Weigher(view=at, state=state, weights=ResourceWeights(), limits=limits, price=0.5)
    found = weigher.weighing(A, BUNDLE)
    assert found is not None
    return found


def cost(found: Weighing, resource: str = "cpu") -> BundleCost:
    return next(one for one in found.costs if one.resource == resource)


def test_what_a_bundle_costs_is_told_with_its_doubt_and_its_source() -> None:
    alike = {key: replace(one, speed=1.0, background=0.0) for key, one in BROKERS.items()}
    found = weighed(after(20, alike))
    one = traffic(20)[0]
    true = 2 * one.msgs * (CPU_PER_MSG + one.size * CPU_PER_BYTE)
    assert cost(found).usage == pytest.approx(true, rel=0.15)
    assert 0 < cost(found).sd < 0.15 * true
    assert cost(found).source is CostSource.REPORTS
    assert 0.8 < cost(found).learned_fraction < 1


def test_costs_that_no_report_changed_are_what_they_began_with() -> None:
    empty = {key: replace(one, bundles=()) for key, one in BROKERS.items()}
    state = learned_from(view(empty), None)
    assert {one.source for one in weighed(state).costs} <= {CostSource.RATES, CostSource.DEFAULT}
    # Nothing was served: no cost is known.
    assert doubt(state.learned.sums, CPU, np.ones(6)) == (0.0, 0.0)


def test_the_share_of_the_doubt_that_reports_removed_grows() -> None:
    first, later = map(weighed, (after(1), LEARNED))
    assert 0 <= cost(first).learned_fraction < cost(later).learned_fraction <= 1


def test_a_brokers_use_is_told_as_reported_and_as_predicted_with_the_noise() -> None:
    (cpu,) = (one for one in weighing(B).uses if one.resource == "cpu")
    assert cpu.reported is not None
    assert cpu.noise is not None
    assert cpu.predicted == pytest.approx(cpu.reported, abs=0.05)
    assert cpu.background == pytest.approx(0.05, abs=0.05)
    assert cpu.speed > 1.05 * weighing(A).uses[0].speed
    assert 0 < cpu.noise < 0.05
    assert weighing(A).level < weighing(A).uses[0].predicted
    assert weighing(B).costs == ()


def test_a_targets_use_is_predicted_before_and_after_with_gain_and_price() -> None:
    told = explained()
    found = {one.broker: one for one in told.candidates}
    paid = found[C].payback
    assert paid is not None
    cpu = cost(weighing())
    (uses,) = (one for one in weighing(C).uses if one.resource == "cpu")
    # At this level rates count for a little of it.
    assert paid.use_with - paid.use == pytest.approx(cpu.usage * uses.speed / 800.0, rel=0.15)
    assert paid.worth_it == (paid.saving > paid.price) == (found[C].refused is None)
    slow = found[B].payback
    assert slow is not None
    assert slow.use_with - slow.use > paid.use_with - paid.use
    savings = [one.payback.saving for one in told.candidates if one.payback]
    assert savings == sorted(savings, reverse=True)


def test_a_move_is_told_with_what_it_was_weighed_by() -> None:
    found = weighing()
    paid = found.paybacks[C]
    (noise,) = (one.noise for one in found.uses if one.resource == "cpu")
    assert found.describe_move(C) == (
        f"c:1 goes from {paid.use:.3f} to {paid.use_with:.3f} of cpu (noise {noise:.3f}); saves "
        f"{paid.saving:.4f} and costs {paid.price:.4f}; cost known from reports "
        f"({cost(found).learned_fraction:.0%} learned)"
    )
    assert found.describe_move(A) == ""


def test_the_move_that_a_round_makes_is_the_one_that_pays_back_most() -> None:
    memory = RoundMemory(shedder=Memory(joint=LEARNED))
    planner = replace(PLANNER, settings=PlannerSettings(settle_s=0.0))
    plan = planner.round(seen(), memory, np.random.default_rng(1))
    first = plan.moves[0]
    assert first.source == A
    known = Known(view=seen(), planner=PLANNER, memory=memory, refusals={})
    best = explain_bundle(known, first.bundle, ()).candidates[0]
    assert (best.broker, best.refused) == (first.target, None)


def test_a_bundle_that_is_left_alone_has_its_best_moves_numbers() -> None:
    (ground,) = explained().grounds
    best = explained().candidates[0]
    assert best.payback is not None
    assert (ground.subject, ground.reason) == (BUNDLE, Reason.NOT_OFFERED)
    assert ground.detail == (
        f"to {best.broker}, {best.payback.use:.3f} of {best.payback.resource} and "
        f"{best.payback.use_with:.3f} with it: saves {best.payback.saving:.4f} and costs "
        f"{best.payback.price:.4f}"
    )


def test_a_bundle_whose_best_move_is_too_dear_says_so() -> None:
    even = {key: replace(one, bundles=BROKERS["b:1"].bundles) for key, one in BROKERS.items()}
    even |= {"a:1": Broker(bundles=range(3)), "b:1": Broker(bundles=range(10, 13))}
    even |= {"c:1": Broker(bundles=range(14, 17))}
    (ground,) = unlearned(even).grounds
    assert ground.reason is Reason.NO_IMPROVEMENT
    assert "saves" in ground.detail


def test_a_bundle_that_no_broker_may_take_says_why_each_may_not() -> None:
    silent = {key: replace(one) for key, one in BROKERS.items()}
    for key in ("b:1", "c:1"):
        silent[key] = replace(silent[key], changed={"seen_s": 0.0})
    (ground,) = unlearned(silent).grounds
    assert (ground.reason, ground.detail) == (Reason.NO_CANDIDATE, "2 report_stale")


def test_a_broker_that_gave_what_it_should_says_where_it_stands() -> None:
    (ground,) = explained(A).grounds
    assert ground.reason is Reason.NOT_OFFERED
    assert ground.detail.startswith("uses 0.")


def test_a_bundle_on_its_way_or_never_measured_has_no_paybacks() -> None:
    moving = explained(in_flight={BUNDLE: B})
    assert all(one.payback is None for one in moving.candidates)
    new = {**traffic(20), 0: Traffic(measured=False)}
    unknown = unlearned(BROKERS, new)
    assert unknown.weighing is not None
    assert unknown.weighing.costs == ()
    assert [one.reason for one in unknown.grounds] == [Reason.LOAD_UNKNOWN]


def test_nobodys_bundle_is_weighed_without_a_broker() -> None:
    found = unlearned(BROKERS, traffic(20), bundle(99)).weighing
    assert found is not None
    assert (found.uses, found.costs, found.paybacks, found.description) == ((), (), {}, "")


def test_where_usage_is_below_its_noise_rates_are_told() -> None:
    few = {k: Traffic(msgs=10.0 + k) for k in range(18)}
    quiet = {key: replace(one, background=0.0) for key, one in BROKERS.items()}
    found = unlearned(quiet, few).weighing
    assert found is not None
    assert [one.source for one in found.costs] == [CostSource.RATES]
    assert [(one.resource, one.reported, one.noise) for one in found.uses] == [
        ("rates", None, None)
    ]


def test_nothing_is_weighed_without_a_fresh_report_or_by_another_strategy() -> None:
    stale = {key: replace(one, changed={"seen_s": 0.0}) for key, one in BROKERS.items()}
    assert unlearned(stale, subject=A).weighing is None
    assert explained(A, planner=Planner()).weighing is None
