import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from leader_at_work import (
    B1,
    B2,
    B3,
    BUNDLES,
    EIGHT,
    HOT,
    ME,
    THRESHOLD,
    LeaderAtWork,
    leader_at_work,
)
from snapshot_samples import report
from waiting import eventually

from loadmanager.admin.decisions import DecisionsQuery
from loadmanager.admin.documents import TasksQuery
from loadmanager.admin.overview import (
    OverviewRequests,
    broker_document,
    most_refused,
    resources_of,
    scarcest_first,
)
from loadmanager.core import znodes
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskState, task_of
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName
from loadmanager.core.explaining import Decision, Outcome
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.orders import encode_owned
from loadmanager.core.plan import Cause, Move, Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.core.snapshot.codec import decode_snapshot, in_force
from loadmanager.core.snapshot.document import view_of_snapshot
from loadmanager.core.wire.records import LeaderRecord
from loadmanager.leader.records import DecisionLog, TaskGains
from loadmanager.ports.lookup import LeaderElsewhere, Missing, Unavailable


@pytest.fixture
async def sidecar() -> AsyncIterator[LeaderAtWork]:
    """Return a sidecar whose rounds come 20 ms apart once it leads."""
    async with leader_at_work(THRESHOLD) as at_work:
        # Without one, the first round that comes before there is a load to decide on recalls all.
        await at_work.create_namespace(EIGHT)
        yield at_work


@pytest.fixture
async def slow() -> AsyncIterator[LeaderAtWork]:
    """Return a sidecar that does no round while a test looks at it."""
    async with leader_at_work(THRESHOLD, round_interval_s=3600) as at_work:
        yield at_work


async def test_a_live_snapshot_can_be_decided_on_elsewhere(slow: LeaderAtWork) -> None:
    await slow.create_namespace(EIGHT)
    await slow.led(*HOT)
    await eventually(lambda: slow.leading.leader_term and slow.leader_term.look().averages)
    snapshot = await slow.explainer.snapshot()
    told = json.loads(snapshot)  # With Pulsar's names.
    assert told["brokers"][B1]["loadReportType"] == "LocalBrokerData"
    assert set(told["bundles"][BUNDLES[0]]) == {"shortTermData", "longTermData", "topics"}
    got = decode_snapshot("live", snapshot)
    assert (got.cluster, got.epoch) == ("east", slow.leader_term.look().epoch)
    assert got.reports == {one.broker: one for one in HOT}
    assert got.owners == dict.fromkeys(BUNDLES, B1)
    assert got.boundaries == {EIGHT.namespace: EIGHT}
    assert got.in_force == in_force(THRESHOLD)
    assert got.averages is not None
    assert got.averages.keys() == set(BUNDLES)
    assert got.running is not None
    assert got.running.keys() == {B1, B2, B3}
    live, offline = slow.leader_term.look(), view_of_snapshot(got)
    want = THRESHOLD.round(live.view, live.memory, np.random.default_rng(1))
    assert want.moves
    assert THRESHOLD.round(offline, got.memory, np.random.default_rng(1)).moves == want.moves


async def test_a_snapshots_memory_is_by_the_wall_clock(sidecar: LeaderAtWork) -> None:
    await sidecar.led(*HOT)
    await sidecar.rounds(1)
    await eventually(lambda: sidecar.leader_term.look().memory.moved_at_s)
    got = decode_snapshot("live", await sidecar.explainer.snapshot())
    assert got.memory.moved_at_s
    assert all(-1 < got.now_s - at_s < 60 for at_s in got.memory.moved_at_s.values())
    assert got.memory.shedder != Memory()


async def test_orders_under_way_are_in_a_snapshot(sidecar: LeaderAtWork) -> None:
    await sidecar.create_namespace(EIGHT)
    await sidecar.led(*HOT)
    await sidecar.rounds(2)
    got = decode_snapshot("live", await sidecar.explainer.snapshot())
    assert got.in_flight
    assert set(got.in_flight.values()) <= {B2, B3}
    assert got.unowned == ()


async def test_boundaries_not_all_known_are_left_out_of_a_snapshot(slow: LeaderAtWork) -> None:
    other = BundleId("t/other/0x00000000_0xffffffff")
    await slow.create_namespace(EIGHT)
    await slow.led(*HOT, report(BrokerId("b4:8080"), 0.1, {other: 1.0}))
    got = decode_snapshot("live", await slow.explainer.snapshot())
    assert got.boundaries == {}
    assert other in got.owners


async def test_owners_outside_boundaries_spoil_no_snapshot(slow: LeaderAtWork) -> None:
    await slow.create_namespace(Boundaries.even(EIGHT.namespace, 16))
    await slow.led(*HOT)
    got = decode_snapshot("live", await slow.explainer.snapshot())
    assert got.boundaries == {EIGHT.namespace: Boundaries.even(EIGHT.namespace, 16)}
    assert got.owners == {}


async def test_a_moved_bundle_is_explained_by_its_move(sidecar: LeaderAtWork) -> None:
    await sidecar.led(*HOT)
    await eventually(lambda: sidecar.leading.leader_term and sidecar.leader_term.look().view.moved)
    decisions = sidecar.explainer.listed(DecisionsQuery(limit=2000))
    moved = next(one for one in decisions if one.outcome is Outcome.MOVED)
    assert (moved.code, moved.source) == (Cause.OVERLOADED, B1)
    account = sidecar.explainer.account(moved.subject)
    told = account.explanation
    assert (told.kind, told.owner, told.target) == ("bundle", B1, moved.target)
    assert moved in told.decisions
    assert [ground.reason for ground in told.grounds[:2]] == [
        Reason.IN_FLIGHT,
        Reason.RECENTLY_MOVED,
    ]
    assert (account.leader, account.in_force) == (ME, in_force(THRESHOLD))
    assert account.last_round >= 1
    assert 0 < account.last_round_at_ms <= account.at_ms


async def test_an_idle_broker_is_explained_by_the_last_round(sidecar: LeaderAtWork) -> None:
    await sidecar.led(*HOT)
    await sidecar.rounds(2)
    told = sidecar.explainer.account(B2).explanation
    assert (told.kind, told.subject, told.score) == ("broker", B2, 0.0)
    assert told.grounds[0].reason is Reason.WITHIN_THRESHOLD
    assert told.grounds[0].subject == B2


async def test_before_the_first_round_an_account_says_so(slow: LeaderAtWork) -> None:
    await slow.led(*HOT)
    account = slow.explainer.account(B1)
    assert (account.last_round, account.last_round_at_ms) == (0, 0)
    assert account.explanation.decisions == ()
    assert account.explanation.grounds == ()


async def test_tasks_are_listed_from_their_order_to_their_end(slow: LeaderAtWork) -> None:
    await slow.led(*HOT[1:])
    assert not slow.explainer.tasks(TasksQuery(limit=10)).tasks
    targets = {bundle: await slow.leading.assign(bundle) for bundle in BUNDLES[:2]}
    told = slow.explainer.tasks(TasksQuery(limit=1))
    assert (told.leader, told.epoch, told.found) == (ME, slow.leader_term.look().epoch, 2)
    (oldest,) = told.tasks
    assert (oldest.bundles, oldest.target) == ([BUNDLES[0]], targets[BUNDLES[0]])
    assert (oldest.state, oldest.asked_by) == (TaskState.ORDERED, AskedBy.UNOWNED.word)
    assert 0 <= oldest.age_s < 60
    assert abs(oldest.proposed_at_ms - told.at_ms) < 60_000
    await slow.write(znodes.owned(targets[BUNDLES[0]]), encode_owned({BUNDLES[0]: 1}))
    await eventually(lambda: slow.explainer.tasks(TasksQuery(limit=10, live=True)).found == 1)
    told = slow.explainer.tasks(TasksQuery(limit=10))
    assert [(one.bundles[0], one.state) for one in told.tasks] == [
        (BUNDLES[1], TaskState.ORDERED),
        (BUNDLES[0], TaskState.SERVING),
    ]


async def test_the_age_of_the_oldest_live_task_is_shown(slow: LeaderAtWork) -> None:
    def shown_s() -> float:
        value = slow.registry.get_sample_value("loadmanager_oldest_task_age_seconds")
        assert value is not None
        return value

    await slow.report(*HOT[1:])
    assert shown_s() == 0
    await slow.led()
    assert shown_s() == 0
    targets = [await slow.leading.assign(bundle) for bundle in BUNDLES[:2]]
    older, newer = slow.leader_term.tasks.tasks
    now_s = slow.context.clock.monotonic_s
    before_s, value_s, after_s = now_s(), shown_s(), now_s()
    assert before_s - older.proposed_at_s <= value_s <= after_s - older.proposed_at_s
    await slow.write(znodes.owned(targets[0]), encode_owned({BUNDLES[0]: 1}))
    await eventually(lambda: slow.explainer.tasks(TasksQuery(limit=2, live=True)).found == 1)
    assert shown_s() <= now_s() - newer.proposed_at_s
    await slow.stop_leading()
    assert shown_s() == 0


async def test_decisions_have_their_task_in_its_present_state(slow: LeaderAtWork) -> None:
    await slow.led(*HOT[1:])
    target = await slow.leading.assign(BUNDLES[0])
    (task,) = slow.explainer.account(BUNDLES[0]).tasks

    def decided() -> tuple[int, TaskState | None]:
        (listed,) = slow.explainer.listed(DecisionsQuery(limit=10))
        (explained,) = slow.explainer.account(BUNDLES[0]).explanation.decisions
        placed = (listed.outcome, listed.code, listed.target, listed.round)
        assert placed == (Outcome.PLACED, Cause.UNOWNED, target, 0)
        assert (listed.task, listed.task_state) == (explained.task, explained.task_state)
        return listed.task, listed.task_state

    assert decided() == (task.number, TaskState.ORDERED)
    await slow.write(znodes.owned(target), encode_owned({BUNDLES[0]: 1}))
    await eventually(lambda: decided() == (task.number, TaskState.SERVING))
    (task,) = slow.explainer.account(BUNDLES[0]).tasks
    assert task.state == TaskState.SERVING
    assert slow.explainer.account(target).tasks == []


async def test_a_bundle_that_nobody_can_take_says_why(slow: LeaderAtWork) -> None:
    await slow.led(replace(HOT[1], draining=True), replace(HOT[2], draining=True))
    with pytest.raises(Unavailable, match="no broker can take"):
        await slow.leading.assign(BUNDLES[0])
    told = slow.explainer.account(BUNDLES[0]).explanation
    assert told.decisions[0].code is Reason.NO_CANDIDATE
    assert told.decisions[0].detail == "2 draining"
    assert {one.broker: one.refused for one in told.candidates} == {
        B2: Reason.DRAINING,
        B3: Reason.DRAINING,
    }


@pytest.mark.parametrize(
    ("subject", "error", "why"),
    [
        *((one, Missing, one) for one in ("t/ns/0x00000000_0x00000001", "b9:8080")),
        *(
            (one, InvalidName, "is not valid; expected")
            for one in ("b9", "t/ns", "t/ns/x", "", "a b:1")
        ),
    ],
)
async def test_names_that_are_unknown_and_that_are_none_are_told_apart(
    slow: LeaderAtWork, subject: str, error: type[Exception], why: str
) -> None:
    await slow.led(*HOT)
    with pytest.raises(error, match=why):
        slow.explainer.account(subject)


async def test_who_does_not_lead_names_the_leader_that_can_be_asked(slow: LeaderAtWork) -> None:
    def ask() -> None:
        slow.explainer.listed(DecisionsQuery(limit=1))

    with pytest.raises(Unavailable, match="no leader is at work"):
        await slow.explainer.snapshot()
    # Its own term has not begun yet.
    await slow.elect(
        LeaderRecord(broker=ME, service_url="", sidecar_url="http://me", instance="me")
    )
    with pytest.raises(Unavailable, match="no leader is at work"):
        ask()
    other = LeaderRecord(
        broker=B2, service_url="", sidecar_url="http://b2:7750", instance="other", epoch=3
    )
    leader = slow.context.cluster_state
    for elected in (other, LeaderRecord(broker=B2, service_url="http://b2:8080")):
        before = leader.leader
        await slow.elect(elected)
        await eventually(lambda before=before: leader.leader != before)  # type: ignore[misc] # bound now
        if elected is other:
            with pytest.raises(LeaderElsewhere) as caught:
                ask()
            assert caught.value.sidecar_url == "http://b2:7750"
    with pytest.raises(Unavailable, match="the leader b2:8080 has no sidecar to ask"):
        ask()


async def test_an_empty_cluster_has_no_snapshot_yet(slow: LeaderAtWork) -> None:
    await slow.led()
    with pytest.raises(Unavailable, match="no broker has a load report yet"):
        await slow.explainer.snapshot()


FOUR = Boundaries.even(Namespace("acme/prod"), 4)
BUNDLE = FOUR.bundles[0]
TAKEN = Rates(25.0, 0.0, 0.75e6, 0.0)


async def test_a_leader_tells_of_balance_brokers_and_who_is_missing() -> None:
    async with leader_at_work(Planner(settings=PlannerSettings(settle_s=0.0))) as sidecar:
        requests = OverviewRequests(
            sidecar.context, sidecar.leading, sidecar.explainer, cluster="east"
        )
        with pytest.raises(Unavailable):
            requests.overview()
        await sidecar.create_namespace(FOUR)
        await sidecar.report(
            report(B1, 0.2, dict.fromkeys(FOUR.bundles[:1], 1e6)),
            report(B2, 0.5, dict.fromkeys(FOUR.bundles[1:3], 1e6)),
            report(B3, 0.1, dict.fromkeys(FOUR.bundles[3:], 1e6)),
        )
        sidecar.lead()
        await sidecar.rounds(2)
        await eventually(lambda: len(requests.overview().course) >= 2)
        seen = requests.overview()
        assert (seen.cluster, seen.leader, seen.measure) == ("east", B1, "use")
        assert [one.broker for one in seen.brokers] == [B2, B1, B3]
        assert (seen.brokers_in_all, seen.bundles) == (3, 4)
        fullest = seen.brokers[0]
        assert (fullest.cpu_fraction, fullest.bundles) == (0.5, 2)
        assert fullest.bytes_per_s == pytest.approx(2e6)
        _, gap, largest, _ = seen.course[-1]
        assert largest == pytest.approx(0.5)
        assert gap > 0.0
        assert seen.resources[0].broker == B2
        assert seen.refusals
        assert sum(one.count for one in seen.refusals) >= 1
        assert seen.missing == []
        assert seen.at_ms >= seen.since_ms > 0
        await sidecar.hand.delete(znodes.registration(B3))
        await eventually(lambda: requests.overview().missing)
        gone = requests.overview().missing[0]
        assert (gone.broker, gone.why) == (B3, "left, or crashed")
        assert gone.since_ms is not None
        assert seen.at_ms + 60_000 - gone.since_ms >= 0


async def test_a_broker_that_reports_nothing_is_missing_too() -> None:
    async with leader_at_work(Planner()) as sidecar:
        requests = OverviewRequests(
            sidecar.context, sidecar.leading, sidecar.explainer, cluster="east"
        )
        await sidecar.report(report(B1, 0.2, {}), report(B2, 0.2, {}))
        await sidecar.hand.delete(znodes.loads(B2))
        await sidecar.led()
        await eventually(lambda: B1 in sidecar.leader_term.tracker.brokers)
        await eventually(
            lambda: (
                [one.broker for one in requests.overview().missing] == [B2]
                and "no load" in requests.overview().missing[0].why
            )
        )


def test_brokers_without_figures_come_last_and_resources_leave_them_out() -> None:
    brokers = [
        broker_document(B1),
        broker_document(B2, cpu_fraction=0.2, bandwidth_out_fraction=0.9, memory_fraction=1.0),
        broker_document(B3, cpu_fraction=0.4),
    ]
    assert [one.broker for one in scarcest_first(brokers)] == [B2, B3, B1]
    cpu, out = sorted(resources_of(brokers), key=lambda one: one.resource)
    assert (out.highest_fraction, out.mean_fraction, out.broker) == (0.9, 0.9, B2)
    assert (cpu.highest_fraction, cpu.broker) == (0.4, B3)
    assert cpu.mean_fraction == pytest.approx(0.3)
    assert resources_of([broker_document(B1)]) == []


def test_refusals_are_counted_by_reason_with_an_example() -> None:
    told = [
        Refusal(BUNDLE, Reason.NO_CANDIDATE, "first"),
        Refusal(B1, Reason.WITHIN_THRESHOLD),
        Refusal(B2, Reason.NO_CANDIDATE, "second"),
    ]
    first, second = most_refused(told)
    assert (first.reason, first.count, first.detail) == (Reason.NO_CANDIDATE, 2, "first")
    assert (second.reason, second.count) == (Reason.WITHIN_THRESHOLD, 1)


def loaded(cpu: float, seen_s: float) -> BrokerLoad:
    return BrokerLoad(
        broker=B1,
        seen_s=seen_s,
        usage=(cpu, 0.0, 0.0, 0.0, 0.0),
        limit=(100.0, 0.0, 0.0, 0.0, 0.0),
        totals=Rates(100.0, 0.0, 1e6, 0.0),
    )


def moving(number: int = 1, influence: Rates | None = TAKEN) -> BundleTask:
    return task_of(
        *(Move(BundleId(BUNDLE), B1, B2, Cause.OVERLOADED), AskedBy.BALANCING),
        number=number,
        influence=influence,
        state=TaskState.ORDERED,
    )


def test_the_gain_of_a_move_is_expected_by_traffic_and_measured_later() -> None:
    tracker = LoadTracker()
    gains = TaskGains(tracker)
    tracker.put(loaded(80.0, 1.0))
    task = moving()
    gains.task_changed(task)
    found = gains.updated()[1]
    assert (found.before, found.after) == (0.8, None)
    assert found.expected == pytest.approx(0.4)
    tracker.put(loaded(60.0, 3.0))
    gains.task_changed(replace(task, state=TaskState.SERVING, ended_at_s=4.0))
    assert gains.updated()[1].after is None
    tracker.put(loaded(45.0, 14.0))
    assert gains.updated()[1].after == pytest.approx(0.45)
    tracker.put(loaded(99.0, 30.0))
    assert gains.updated()[1].after == pytest.approx(0.45)


def test_no_gain_is_told_where_traffic_or_source_is_unknown() -> None:
    tracker = LoadTracker()
    gains = TaskGains(tracker)
    gains.task_changed(moving())
    tracker.put(loaded(80.0, 1.0))
    gains.task_changed(moving(2, influence=None))
    gains.task_changed(replace(moving(3), source=None))
    assert gains.updated() == {}
    gains.task_changed(moving(4))
    gains.task_changed(replace(moving(4), state=TaskState.SERVING, ended_at_s=2.0))
    tracker.forget(B1, 3.0)
    assert gains.updated()[4].after is None


def test_only_the_last_moves_are_kept() -> None:
    tracker = LoadTracker()
    gains = TaskGains(tracker)
    tracker.put(loaded(80.0, 1.0))
    for number in range(1, 1001):
        gains.task_changed(moving(number))
    assert min(gains.updated()) == 1001 - 256


A, B = BundleId("t/n/0x00000000_0x80000000"), BundleId("t/n/0x80000000_0xffffffff")
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


def test_a_move_is_remembered_of_the_bundle_and_both_brokers_beyond_later_refusals() -> None:
    clock = SetClock()
    past = DecisionLog(clock, 4)
    past.round_done(plan(MOVE), [B1, B2])
    past.moved([MOVE])
    assert past.decisions() == [MOVED]
    assert past.about(A) == past.about(B1) == past.about(B2) == (MOVED,)
    assert past.about(B) == ()
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
    assert past.decisions() == [left_alone, MOVED]
    assert DecisionsQuery(limit=1).of(past.decisions()) == [left_alone]
    assert past.refusals == {A: [refusal]}
    assert (past.rounds, past.last_round_at_ms) == (2, 2000)


def test_decisions_are_found_by_page_kind_namespace_time_subject_and_broker() -> None:
    clock = SetClock()
    past = DecisionLog(clock, 4)
    other = BundleId("t/n2/0x00000000_0x80000000")
    past.round_done(plan(MOVE), [B1, B2])
    past.moved([MOVE])
    clock.now_ms = 2000
    past.placed([Move(B, B1, B2, Cause.REQUESTED), Move(other, B2, B1, Cause.DRAINING)])

    def found(**wish: Any) -> list[str]:
        decisions = past.decisions(wish.get("subject", ""))
        return [one.subject for one in DecisionsQuery(**{"limit": 10, **wish}).of(decisions)]

    assert found() == [other, B, A]
    assert found(kinds=["unload"]) == [B]
    assert found(kinds=["drain", "move"]) == [other, A]
    assert found(namespace="t/n") == [B, A]
    assert found(since_ms=2000) == [other, B]
    assert found(since_ms=2001) == []
    newest, second = DecisionsQuery(limit=2).of(past.decisions())
    assert [newest.subject, second.subject, *found(before=second.number)] == found()
    assert found(broker="b9:8080") == []
    assert found(broker=B1) == found()
    past.unplaced([Refusal(A, Reason.NO_CANDIDATE)])
    assert found(subject=A) == [A, A]
    assert found(subject=A, kinds=["move"]) == [A]


def test_what_a_round_says_of_every_broker_does_not_crowd_out_the_moves() -> None:
    past = DecisionLog(SetClock(), 4, most_decisions=2)
    past.round_done(plan(MOVE), [B1, B2])
    past.moved([MOVE])
    calm = (Refusal(B1, Reason.WITHIN_THRESHOLD), Refusal("", Reason.CLUSTER_IDLE))
    past.round_done(plan(refusals=calm), [B1, B2])
    assert [(one.subject, one.code) for one in past.decisions()] == [
        ("", Reason.CLUSTER_IDLE),
        (A, Cause.OVERLOADED),
    ]
    assert past.about(B1)[0].code is Reason.WITHIN_THRESHOLD


def test_why_a_bundle_found_no_place_is_remembered_but_not_listed_at_every_try() -> None:
    past = DecisionLog(SetClock(), 4)
    for _ in range(3):
        past.unplaced([Refusal(A, Reason.NO_CANDIDATE, "2 draining")])
    assert past.decisions() == []
    assert [(one.code, one.detail) for one in past.about(A)] == [
        (Reason.NO_CANDIDATE, "2 draining")
    ]


def test_both_bounds_hold_and_the_oldest_goes_first() -> None:
    past = DecisionLog(SetClock(), 4, most_decisions=3, most_subjects=2)
    for number in range(5):
        past.unplaced([Refusal(BundleId(f"t/n/{number}"), Reason.NO_CANDIDATE)])
        past.placed([Move(BundleId(f"t/n/{number}"), None, B1, Cause.UNOWNED)])
    assert [one.subject for one in past.decisions()] == ["t/n/4", "t/n/3", "t/n/2"]
    assert past.about("t/n/3") == ()
    assert past.about("t/n/4") != ()
    assert past.about(B1)[0].subject == "t/n/4"
