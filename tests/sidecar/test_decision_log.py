from dataclasses import replace
from typing import Any

from loadmanager.core.explaining import Decision, Outcome
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Plan
from loadmanager.core.round_memory import RoundMemory
from loadmanager.leader.decision_log import DecisionLog
from loadmanager.ports.leading import DecisionFilter

B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
A, B = BundleId("t/n/0x00000000_0x80000000"), BundleId("t/n/0x80000000_0xffffffff")
TEN = DecisionFilter(limit=10)
MOVE = Move(A, B1, B2, Cause.OVERLOADED)


class SetClock:
    now_ms = 1000

    def monotonic_s(self) -> float:
        return self.now_ms / 1000

    def wall_ms(self) -> int:
        return self.now_ms

    async def sleep(self, delay_s: float) -> None:
        raise AssertionError(delay_s)


def plan(*moves: Move, refusals: tuple[Refusal, ...] = (), observed: bool = False) -> Plan:
    made = Plan(moves=moves, refusals=refusals, memory=RoundMemory())
    return replace(made, moves=(), observed=moves) if observed else made


MOVED = Decision(
    at_ms=1000,
    epoch=4,
    round=1,
    subject=A,
    outcome=Outcome.MOVED,
    code=Cause.OVERLOADED,
    source=B1,
    target=B2,
)


def test_a_move_is_remembered_of_the_bundle_and_both_brokers() -> None:
    past = DecisionLog(SetClock(), 4)
    past.round_done(plan(MOVE), [B1, B2])
    past.moved([MOVE])
    assert past.decisions(TEN) == [MOVED]
    assert past.about(A) == past.about(B1) == past.about(B2) == (MOVED,)
    assert past.about(B) == ()


def test_decisions_are_found_by_kind_namespace_and_time() -> None:
    clock = SetClock()
    past = DecisionLog(clock, 4)
    other = BundleId("t/n2/0x00000000_0x80000000")
    past.round_done(plan(MOVE), [B1, B2])
    past.moved([MOVE])
    clock.now_ms = 2000
    past.placed([Move(B, B1, B2, Cause.REQUESTED), Move(other, B2, B1, Cause.DRAINING)])

    def found(**wish: Any) -> list[str]:
        return [one.subject for one in past.decisions(DecisionFilter(limit=10, **wish))]

    assert found() == [other, B, A]
    assert found(kinds=["unload"]) == [B]
    assert found(kinds=["drain", "move"]) == [other, A]
    assert found(namespace="t/n") == [B, A]
    assert found(since_ms=2000) == [other, B]
    assert found(since_ms=2001) == []


def test_the_last_move_outlives_later_refusals() -> None:
    clock = SetClock()
    past = DecisionLog(clock, 4)
    past.round_done(plan(MOVE), [B1, B2])
    past.moved([MOVE])
    clock.now_ms = 2000
    refusal = Refusal(A, Reason.NO_IMPROVEMENT, "0.6, 0.5")
    past.round_done(plan(refusals=(refusal,)), [B1, B2])
    left_alone = Decision(
        at_ms=2000,
        epoch=4,
        round=2,
        subject=A,
        outcome=Outcome.LEFT_ALONE,
        code=Reason.NO_IMPROVEMENT,
        detail="0.6, 0.5",
    )
    assert past.about(A) == (left_alone, MOVED)
    assert past.decisions(TEN) == [left_alone, MOVED]
    assert past.decisions(DecisionFilter(limit=1)) == [left_alone]
    assert past.refusals == {A: [refusal]}
    assert (past.rounds, past.last_round_at_ms) == (2, 2000)


def test_what_a_round_says_of_every_broker_does_not_crowd_out_the_moves() -> None:
    past = DecisionLog(SetClock(), 4, most_decisions=2)
    past.round_done(plan(MOVE), [B1, B2])
    past.moved([MOVE])
    calm = (Refusal(B1, Reason.WITHIN_THRESHOLD), Refusal("", Reason.CLUSTER_IDLE))
    past.round_done(plan(refusals=calm), [B1, B2])
    assert [(one.subject, one.code) for one in past.decisions(TEN)] == [
        ("", Reason.CLUSTER_IDLE),
        (A, Cause.OVERLOADED),
    ]
    assert past.about(B1)[0].code is Reason.WITHIN_THRESHOLD


def test_observed_and_placed_bundles_are_told_as_such() -> None:
    past = DecisionLog(SetClock(), 4)
    past.round_done(plan(MOVE, observed=True), [B1, B2])
    past.placed([Move(B, None, B1, Cause.UNOWNED)])
    assert [(one.subject, one.outcome, one.round) for one in past.decisions(TEN)] == [
        (B, Outcome.PLACED, 0),
        (A, Outcome.OBSERVED, 1),
    ]


def test_why_a_bundle_found_no_place_is_remembered_but_not_listed_at_every_try() -> None:
    past = DecisionLog(SetClock(), 4)
    for _ in range(3):
        past.unplaced([Refusal(A, Reason.NO_CANDIDATE, "2 draining")])
    assert past.decisions(TEN) == []
    assert [(one.code, one.detail) for one in past.about(A)] == [
        (Reason.NO_CANDIDATE, "2 draining")
    ]


def test_both_bounds_hold_and_the_oldest_goes_first() -> None:
    past = DecisionLog(SetClock(), 4, most_decisions=3, most_subjects=2)
    for number in range(5):
        past.unplaced([Refusal(BundleId(f"t/n/{number}"), Reason.NO_CANDIDATE)])
        past.placed([Move(BundleId(f"t/n/{number}"), None, B1, Cause.UNOWNED)])
    assert [one.subject for one in past.decisions(TEN)] == ["t/n/4", "t/n/3", "t/n/2"]
    assert past.about("t/n/3") == ()
    assert past.about("t/n/4") != ()
    assert past.about(B1)[0].subject == "t/n/4"


def test_without_rounds_and_orders_nothing_is_remembered() -> None:
    past = DecisionLog(SetClock(), 4)
    assert (past.refusals, past.rounds, past.decisions(TEN)) == (None, 0, [])
    past.round_done(plan(MOVE), [B1, B2])
    assert (past.decisions(TEN), past.about(A)) == ([], ())


def test_the_ledger_is_read_page_by_page_and_through_filters() -> None:
    past = DecisionLog(SetClock(), epoch=3)
    bundles = [BundleId(f"t/n/{number}") for number in range(5)]
    for bundle in bundles:
        past.placed([Move(bundle, None, B1, Cause.UNOWNED)])
    first = past.decisions(DecisionFilter(limit=2))
    rest = past.decisions(DecisionFilter(limit=10, before=first[-1].number))
    assert [one.subject for one in (*first, *rest)] == bundles[::-1]
    past.unplaced([Refusal(bundles[0], Reason.NO_CANDIDATE)])
    told = past.decisions(DecisionFilter(limit=10, subject=bundles[0]))
    assert [one.outcome for one in told] == [Outcome.LEFT_ALONE, Outcome.PLACED]
    assert (
        past.decisions(DecisionFilter(limit=10, subject=bundles[0], outcome="placed")) == told[1:]
    )
    assert past.decisions(DecisionFilter(limit=10, broker="b9:8080")) == []
    assert past.decisions(DecisionFilter(limit=10, round=7)) == []
    assert len(past.decisions(DecisionFilter(limit=10, broker=B1))) == 5
