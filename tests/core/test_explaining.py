from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from snapshot_samples import B1, B2, HIGH, LOW, report

from loadmanager.core.cluster import UnknownBroker
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
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.policies import IsolationPolicy, Policies
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
