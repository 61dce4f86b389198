from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from joint_cluster import CPU_PER_BYTE, CPU_PER_MSG, Broker, Traffic, learned, open_limits, view
from small_view import bundle
from snapshot_samples import B1, B2, HIGH, LOW, report

from loadmanager.core.cluster import ClusterView, UnknownBroker
from loadmanager.core.explaining import (
    Candidate,
    Explanation,
    Kind,
    Known,
    Outcome,
    explain_broker,
    explain_bundle,
    move_decision,
    refusal_decision,
)
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.joint.deciding import learned_from
from loadmanager.core.joint.state import JointState
from loadmanager.core.joint.unit_costs import doubt
from loadmanager.core.joint.weighing import BundleCost, CostSource, Weigher, Weighing
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.placement import JointPlacement
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.scores import CPU, ResourceWeights
from loadmanager.core.shedding import JointShedder
from loadmanager.core.snapshot.document import Snapshot, view_of_snapshot

B3 = BrokerId("b3:8080")
OWN = BundleId("pulsar/b1:8080/0x00000000_0xffffffff")
near: Any = pytest.approx  # Usage is computed in 32 bits.


def known(
    snapshot: Snapshot | None = None,
    *refusals: Refusal,
    settings: PlannerSettings | None = None,
    memory: RoundMemory | None = None,
    rounds: bool = True,
) -> Known:
    """Return what a leader knows of two brokers at 0.9 and 0.1, the first with both bundles."""
    usual = Snapshot(
        reports={B1: report(B1, 0.9, {LOW: 30e6, HIGH: 10e6}), B2: report(B2, 0.1, {})},
        taken_at_ms=1_000_000,
    )
    by_subject: dict[str, list[Refusal]] = {}
    for refusal in refusals:
        by_subject.setdefault(refusal.subject, []).append(refusal)
    return Known(
        view=view_of_snapshot(snapshot or usual),
        planner=Planner(settings=settings or PlannerSettings()),
        memory=memory or RoundMemory(),
        refusals=by_subject if rounds else None,
    )


@pytest.mark.parametrize(
    ("move", "outcome", "kind"),
    [
        (Move(LOW, B1, B2, Cause.OVERLOADED), Outcome.MOVED, Kind.MOVE),
        # A round whose orders were found to stand after all enters its moves as placed.
        (Move(LOW, B1, B2, Cause.IMBALANCE), Outcome.PLACED, Kind.MOVE),
        (Move(LOW, B1, B2, Cause.OVERLOADED), Outcome.OBSERVED, Kind.OBSERVED),
        (Move(LOW, None, B2, Cause.UNOWNED), Outcome.PLACED, Kind.PLACEMENT),
        (Move(LOW, None, B2, Cause.REQUESTED), Outcome.PLACED, Kind.PLACEMENT),
        (Move(LOW, B1, B2, Cause.UNOWNED), Outcome.PLACED, Kind.PLACEMENT),
        (Move(LOW, B1, B2, Cause.DRAINING), Outcome.PLACED, Kind.DRAIN),
        (Move(LOW, B1, B2, Cause.REQUESTED), Outcome.PLACED, Kind.UNLOAD),
    ],
)
def test_a_move_is_of_the_kind_that_asked_for_it(move: Move, outcome: Outcome, kind: Kind) -> None:
    assert move_decision(move, outcome, at_ms=1, epoch=1).kind is kind


def test_bundles_of_a_refused_policy_stay_and_it_is_named() -> None:
    odd = IsolationPolicy(namespaces=("t/(?!a).*",), primary=("b2",))
    policies = Policies(isolation={"odd": odd, "other": replace(odd, namespaces=("x/(?!a).*",))})
    view = replace(known().view, policies=policies)
    (ground, *_) = explain_bundle(replace(known(), view=view), HIGH, ()).grounds
    assert (ground.reason, ground.detail) == (Reason.ISOLATED, policies.refused["odd"])
    for names, moves in ((("t/(?!a).*",), 0), (("x/(?!a).*",), 1)):
        found = replace(policies, isolation={"odd": replace(odd, namespaces=names)})
        planner = Planner(settings=PlannerSettings(settle_s=0.0, mode=Mode.SAFE))
        plan = planner.round(
            replace(view, policies=found), RoundMemory(), np.random.default_rng(0), draining=False
        )
        assert bool(plan.moves) == bool(moves), plan


def test_what_was_left_alone_is_a_kind_of_its_own() -> None:
    refusal = Refusal(B1, Reason.DRAINING)
    assert refusal_decision(refusal, at_ms=1, epoch=1).kind is Kind.LEFT_ALONE


def test_a_bundle_is_told_with_its_load_its_brokers_score_and_its_chances() -> None:
    got = explain_bundle(known(), HIGH, ())
    assert got == Explanation(
        subject=HIGH,
        kind="bundle",
        owner=B1,
        target=None,
        msgs_per_s=10_000.0,
        bytes_per_s=10e6,
        bundles=1,
        score=near(0.9),
        mean=near(0.5),
        highest=near(0.9),
        lowest=near(0.1),
        decisions=(),
        grounds=(Refusal(HIGH, Reason.NOT_OFFERED),),
        candidates=(Candidate(B2, near(0.1), near(0.325), None),),
    )


def test_a_broker_that_would_stand_as_high_is_no_improvement_but_in_parity_mode() -> None:
    hot = report(B2, 0.8, {})
    full = Snapshot(reports={B1: report(B1, 0.9, {LOW: 30e6}), B2: hot})
    (safe,) = explain_bundle(known(full), LOW, ()).candidates
    assert safe.refused is Reason.NO_IMPROVEMENT
    parity = PlannerSettings(mode=Mode.PARITY)
    (obeyed,) = explain_bundle(known(full, settings=parity), LOW, ()).candidates
    assert obeyed.refused is None


def test_candidates_come_best_first_and_refused_ones_last() -> None:
    snapshot = Snapshot(
        reports={
            B1: report(B1, 0.9, {LOW: 1e6}),
            B2: report(B2, 0.5, {}),
            B3: report(B3, 0.3, {}),
            BrokerId("b4:8080"): report(BrokerId("b4:8080"), 0.0, {}),
        },
        age_s={BrokerId("b4:8080"): 1000.0},
    )
    got = explain_bundle(known(snapshot, settings=PlannerSettings(mode=Mode.PARITY)), LOW, ())
    assert [(one.broker, one.refused) for one in got.candidates] == [
        (B3, None),
        (B2, None),
        ("b4:8080", Reason.REPORT_STALE),
    ]


CHANGING = Refusal("", Reason.MEMBERSHIP_CHANGING, "changed 3 s ago")
PENDING, NOBODY = Refusal(B1, Reason.HITS_PENDING, "1 low hits"), Refusal(HIGH, Reason.NO_CANDIDATE)
MOVED = RoundMemory(moved_at_s={HIGH: 900.0, LOW: -900.0})
EXCLUDED = PlannerSettings(excluded_namespaces=frozenset({Namespace("t/ns")}))
OWNED = Snapshot(reports={B1: report(B1, 0.9, {OWN: 1.0, LOW: 1.0})})


@pytest.mark.parametrize(
    ("at_hand", "bundle", "grounds"),
    [
        pytest.param(
            known(None, CHANGING, PENDING, NOBODY, Refusal(LOW, Reason.ROUND_BUDGET)),
            HIGH,
            (NOBODY, PENDING, CHANGING),
            id="of it, of its broker and of all",
        ),
        pytest.param(
            known(memory=MOVED),
            HIGH,
            (Refusal(HIGH, Reason.RECENTLY_MOVED, "moved 100 s ago, rests 1700 s more"),),
            id="it moved lately",
        ),
        pytest.param(known(memory=MOVED), LOW, (Refusal(LOW, Reason.NOT_OFFERED),), id="long ago"),
        pytest.param(
            known(OWNED, settings=EXCLUDED),
            OWN,
            (Refusal(OWN, Reason.NAMESPACE_EXCLUDED, "it is a broker's own bundle"),),
            id="a broker's own",
        ),
        pytest.param(
            known(OWNED, settings=EXCLUDED),
            LOW,
            (Refusal(LOW, Reason.NAMESPACE_EXCLUDED, "t/ns"),),
            id="its namespace is excluded",
        ),
        pytest.param(known(rounds=False), HIGH, (), id="before the first round"),
    ],
)
def test_what_holds_a_bundle(
    at_hand: Known, bundle: BundleId, grounds: tuple[Refusal, ...]
) -> None:
    assert explain_bundle(at_hand, bundle, ()).grounds == grounds


def test_a_bundle_under_way_says_where_to() -> None:
    snapshot = Snapshot(
        reports={B1: report(B1, 0.9, {LOW: 1.0}), B2: report(B2, 0.1, {})}, in_flight={LOW: B2}
    )
    got = explain_bundle(known(snapshot), LOW, ())
    assert (got.owner, got.target) == (B1, B2)
    assert got.grounds == (Refusal(LOW, Reason.IN_FLIGHT, "to b2:8080"),)


def test_a_bundle_nobody_measured_or_reports_says_so() -> None:
    unmeasured = Snapshot(reports={B1: report(B1, 0.9, {LOW: 1.0})}, averages={})
    for snapshot in (unmeasured, Snapshot(reports={B1: report(B1, 0.9, {})})):
        got = explain_bundle(known(snapshot), LOW, ())
        assert got.grounds == (Refusal(LOW, Reason.LOAD_UNKNOWN, "no sample of its traffic yet"),)
    assert (got.owner, got.score) == (None, None)
    assert got.candidates[0].refused is None


def test_a_broker_is_told_with_its_load_and_what_was_said_of_it() -> None:
    refusals = (Refusal("", Reason.SHEDDING_OFF), Refusal(B1, Reason.WITHIN_THRESHOLD, "0.9"))
    got = explain_broker(known(None, *refusals), B1, ())
    assert (got.kind, got.bundles, got.msgs_per_s, got.bytes_per_s) == ("broker", 2, 40e3, 40e6)
    assert got.score == pytest.approx(0.9)
    assert got.grounds == (
        Refusal(B1, Reason.WITHIN_THRESHOLD, "0.9"),
        Refusal("", Reason.SHEDDING_OFF),
    )
    assert got.candidates == ()


SILENT = Snapshot(
    reports={B1: report(B1, 0.9, {}), B2: replace(report(B2, 0.1, {}), draining=True)},
    age_s={B1: 400.0},
)
CORDONED = Snapshot(reports={B1: replace(report(B1, 0.9, {}), persistent_topics=False)})


@pytest.mark.parametrize(
    ("at_hand", "broker", "grounds"),
    [
        (known(SILENT), B1, (Refusal(B1, Reason.REPORT_STALE, "400 s old"),)),
        (known(SILENT), B2, (Refusal(B2, Reason.DRAINING),)),
        (known(CORDONED), B1, (Refusal(B1, Reason.DOMAIN_UNSUPPORTED),)),
        (known(), B1, (Refusal(B1, Reason.NOT_OFFERED),)),
        (known(rounds=False), B1, ()),
    ],
    ids=["silent", "draining", "cordoned", "nothing was said of it", "before the first round"],
)
def test_what_holds_a_broker(
    at_hand: Known, broker: BrokerId, grounds: tuple[Refusal, ...]
) -> None:
    assert explain_broker(at_hand, broker, ()).grounds == grounds


def test_a_broker_without_a_report_is_unknown() -> None:
    with pytest.raises(UnknownBroker, match="b9:8080"):
        explain_broker(known(), BrokerId("b9:8080"), ())


def test_in_an_empty_cluster_nothing_can_take_the_bundle() -> None:
    got = explain_bundle(known(Snapshot(reports={})), LOW, ())
    assert (got.mean, got.highest, got.lowest, got.candidates) == (0.0, 0.0, 0.0, ())


def test_decisions_about_it_are_passed_on() -> None:
    told = move_decision(Move(LOW, B2, B1, Cause.SWAP), Outcome.MOVED, at_ms=5, epoch=1, number=2)
    assert explain_bundle(known(), LOW, (told,)).decisions == (told,)


def test_a_bundle_that_nobody_owned_was_placed() -> None:
    move = Move(LOW, None, B1, Cause.UNOWNED)
    got = move_decision(move, Outcome.MOVED, at_ms=7, epoch=3, number=2)
    assert (got.outcome, got.code, got.source) == (Outcome.PLACED, Cause.UNOWNED, None)


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
        k: Traffic(msgs=rng.uniform(6000, 9000), size=float(rng.choice([100, 2000])))
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
