from dataclasses import replace

import pytest
from leader_at_work import leader_at_work
from snapshot_samples import report
from waiting import eventually

from loadmanager.common.overview import most_refused, resources_of, scarcest_first
from loadmanager.core import znodes
from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind, TaskState
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.plan import Cause, Reason, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.rates import Rates
from loadmanager.leader.overview import OverviewRequests
from loadmanager.leader.task_reports import TaskGains
from loadmanager.ports.lookup import Unavailable
from loadmanager.ports.overview import BrokerUse

B1, B2, B3 = (BrokerId(f"b{number}:8080") for number in (1, 2, 3))
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
        assert seen.course[-1].largest == pytest.approx(0.5)
        assert seen.course[-1].gap > 0.0
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
        BrokerUse(broker=B1),
        BrokerUse(broker=B2, cpu_fraction=0.2, bandwidth_out_fraction=0.9, memory_fraction=1.0),
        BrokerUse(broker=B3, cpu_fraction=0.4),
    ]
    assert [one.broker for one in scarcest_first(brokers)] == [B2, B3, B1]
    cpu, out = sorted(resources_of(brokers), key=lambda one: one.resource)
    assert (out.highest_fraction, out.mean_fraction, out.broker) == (0.9, 0.9, B2)
    assert (cpu.highest_fraction, cpu.broker) == (0.4, B3)
    assert cpu.mean_fraction == pytest.approx(0.3)
    assert resources_of([BrokerUse(broker=B1)]) == []


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
    return BundleTask(
        number=number,
        kind=TaskKind.MOVE,
        bundles=(BundleId(BUNDLE),),
        source=B1,
        target=B2,
        cause=Cause.OVERLOADED,
        asked_by=AskedBy.BALANCING,
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
