from dataclasses import replace

import numpy as np
import pytest
from snapshot_samples import B1, B2, HIGH, LOW, NS, average, hot_and_idle, report, whole_snapshot
from synthetic_cluster import synthetic_brokers

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.plan import Cause, Move, Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.round_memory import RoundMemory
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import ThresholdShedder, TransferShedder
from loadmanager.core.snapshot.decoding import decode_snapshot
from loadmanager.core.snapshot.document import RunningLoad, Snapshot, view_of_snapshot
from loadmanager.core.snapshot.encoding import encode_snapshot
from loadmanager.core.snapshot.rounds import run_rounds

WHERE = "cluster.json"


def leader_at_work() -> tuple[LoadTracker, dict[BrokerId, LoadReport]]:
    """Return a tally after two samples of differing reports, and the last reports."""
    tracker = LoadTracker()
    reports: dict[BrokerId, LoadReport] = {}
    for grown_by in (1.0, 1.3):
        for broker in synthetic_brokers(6, "spread"):
            reports[broker.name] = broker.report(grown_by=grown_by)
            tracker.report(reports[broker.name], 50.0 + grown_by)
        tracker.sample()
    return tracker, reports


@pytest.mark.parametrize(
    "planner",
    [
        Planner(shedder=ThresholdShedder(min_bytes_per_s=0.0)),
        Planner(shedder=TransferShedder(hits=0, target_std=0.01)),
    ],
)
def test_the_planner_decides_on_a_snapshot_as_on_the_live_view(planner: Planner) -> None:
    tracker, reports = leader_at_work()
    now_s = 1_000_000.0 + 60.0
    live = tracker.view(60.0)
    emas = live.brokers.load_ema.tolist(), live.brokers.bytes_ema.tolist()
    snapshot = Snapshot(
        reports=reports,
        taken_at_ms=int(now_s * 1000),
        age_s=dict(zip(live.brokers.names, live.age_s.tolist(), strict=True)),
        averages=tracker.averages(),
        running=dict(zip(live.brokers.names, map(RunningLoad, *emas), strict=True)),
    )
    view = view_of_snapshot(decode_snapshot(WHERE, encode_snapshot(snapshot)))
    settled = replace(live, membership_changed_s=float("-inf"))
    want = planner.round(settled, RoundMemory(), np.random.default_rng(3))
    got = planner.round(view, RoundMemory(), np.random.default_rng(3))
    assert want.moves
    assert (got.moves, got.refusals) == (want.moves, want.refusals)


def test_the_view_tells_ages_membership_and_orders() -> None:
    view = view_of_snapshot(whole_snapshot())
    assert view.age_s == pytest.approx([2.5, 0.25])
    assert view.now_s - view.membership_changed_s == pytest.approx(100.0)
    assert [view.now_s - left_s for left_s in view.departures_s] == pytest.approx([3.5])
    assert view.moved == {LOW: B2}


def test_reports_alone_count_as_one_sample_each() -> None:
    snapshot = Snapshot(reports={B1: report(B1, 0.5, {LOW: 100.0})})
    view = view_of_snapshot(snapshot)
    assert view.bundles.known.tolist() == [True]
    assert view.short_rates(LOW).tolist() == [0.1, 0.0, 100.0, 0.0]
    assert view.brokers.load_ema.tolist() == [0.5]
    assert view.brokers.bytes_ema.tolist() == [100.0]


def test_a_bundle_without_averages_among_others_with_them_is_not_measured() -> None:
    view = view_of_snapshot(replace(whole_snapshot(), averages={LOW: average(1.0)}))
    assert {name: bool(view.bundles.known[row]) for name, row in view.bundles.index.items()} == {
        LOW: True,
        HIGH: False,
    }


def test_a_broker_without_running_load_among_others_with_it_has_none() -> None:
    view = view_of_snapshot(replace(whole_snapshot(), running={B1: RunningLoad(0.4, 3.0)}))
    assert view.brokers.load_ema.tolist() == pytest.approx([0.4, float("nan")], nan_ok=True)


# --- rounds --------------------------------------------------------------------------


def hottest(snapshot: Snapshot, planner: Planner, rounds: int) -> list[float]:
    done = run_rounds(snapshot, planner, np.random.default_rng(0), rounds)
    return [float(one.after.scores(ResourceWeights()).max()) for one in done]


def test_a_round_shows_the_cluster_before_and_after_its_moves() -> None:
    (done,) = run_rounds(hot_and_idle(), Planner(), np.random.default_rng(0))
    assert done.moves
    assert all(move.source == B1 and move.cause is Cause.OVERLOADED for move in done.moves)
    left = 0.8 * (1 - len(done.moves) / 8)
    assert done.before.scores(ResourceWeights()).tolist() == pytest.approx([0.8, 0, 0])
    assert done.after.scores(ResourceWeights())[0] == pytest.approx(left)


def test_each_round_begins_where_the_last_one_ended() -> None:
    first, second = run_rounds(hot_and_idle(), Planner(), np.random.default_rng(0), 2)
    weights = ResourceWeights()
    assert second.before.scores(weights) == pytest.approx(first.after.scores(weights))
    for broker in first.after.brokers.names:
        assert set(second.before.bundles_of(broker)) == set(first.after.bundles_of(broker))
    assert second.before.moved == {}
    assert second.before.now_s == first.before.now_s + 60.0


def test_rounds_bring_the_hottest_broker_down_and_never_up() -> None:
    scores = hottest(hot_and_idle(), Planner(), 10)
    assert scores == sorted(scores, reverse=True)
    assert scores[-1] < 0.5
    done = run_rounds(hot_and_idle(), Planner(), np.random.default_rng(0), 10)
    moved = [move.bundle for one in done for move in one.moves]
    assert len(set(moved)) == len(moved)  # None moves back within its grace period.


def test_observed_moves_are_shown_as_if_they_were_made() -> None:
    planner = Planner(settings=PlannerSettings(observe=True))
    (done,) = run_rounds(hot_and_idle(), planner, np.random.default_rng(0))
    assert done.plan.moves == ()
    assert done.moves == done.plan.observed
    assert hottest(hot_and_idle(), planner, 1)[0] < 0.8


def test_unowned_bundles_are_placed_first_and_once() -> None:
    orphan = BundleId("t/other/0x00000000_0xffffffff")
    snapshot = replace(hot_and_idle(), unowned=(orphan,))
    first, second = run_rounds(snapshot, Planner(), np.random.default_rng(0), 2)
    assert first.moves[0].bundle == orphan
    assert first.moves[0].source is None
    assert orphan not in {move.bundle for move in second.moves}
    assert second.before.owner_of(orphan) == first.moves[0].target


def test_what_was_in_flight_has_arrived_in_the_next_round() -> None:
    bundle = Boundaries.even(NS, 8).bundles[0]
    snapshot = replace(hot_and_idle(), in_flight={bundle: B2}, membership_changed_ago_s=1.0)
    first, second = run_rounds(snapshot, Planner(), np.random.default_rng(0), 2)
    assert first.moves == ()
    assert first.plan.refusals[0].reason is Reason.MEMBERSHIP_CHANGING
    assert second.before.listed_owner(bundle) == B2
    assert Move(bundle, B1, B2, Cause.OVERLOADED) not in second.moves
    assert second.moves


def test_running_load_follows_the_moves() -> None:
    snapshot = replace(hot_and_idle(), departed_ago_s=(10.0,))
    first, second = run_rounds(snapshot, Planner(), np.random.default_rng(0), 2)
    before, after = first.before.brokers.load_ema[0], second.before.brokers.load_ema[0]
    assert after == pytest.approx(
        before * 0.9**6 + (1 - 0.9**6) * float(first.after.scores(ResourceWeights())[0])
    )
    assert second.before.now_s - second.before.departures_s[0] == pytest.approx(70.0)
