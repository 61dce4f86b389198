import json
import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_view import owner_of
from snapshot_samples import B1, B2, HIGH, LOW, NS, average, hot_and_idle, report, whole_snapshot
from synthetic_cluster import synthetic_brokers

from loadmanager.core.averages import Running
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.memory import RoundMemory
from loadmanager.core.plan import Cause, Move, Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.playback import run_rounds
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import ThresholdShedder, TransferShedder
from loadmanager.core.shedding.contract import Shedder
from loadmanager.core.snapshot.codec import decode_snapshot, encode_snapshot
from loadmanager.core.snapshot.document import Snapshot, view_of_snapshot
from loadmanager.core.wire.reports import encode_registration, report_to_json

WHERE = "cluster.json"


def document(**changes: Any) -> bytes:
    found: dict[str, Any] = {
        "version": 1,
        "takenAtMs": 1000,
        "brokers": {
            B1: report_to_json(report(B1, 0.9, {LOW: 1.0})),
            B2: report_to_json(report(B2, 0.1, {HIGH: 1.0})),
        },
        "boundaries": {NS: ["0x00000000", "0x80000000", "0xffffffff"]},
        "owners": {LOW: B1, HIGH: B2},
    } | changes
    return json.dumps({name: value for name, value in found.items() if value is not None}).encode()


def broker_with(**changes: Any) -> dict[str, Any]:
    brokers: dict[str, Any] = json.loads(document())["brokers"]
    brokers[B1] |= changes
    return brokers


def first(**changes: Any) -> bytes:
    return document(owners=None, brokers=broker_with(**changes))


def test_a_snapshot_comes_back_as_it_was() -> None:
    reports_alone = Snapshot(reports={B1: report(B1, 0.9, {LOW: 1.0})}, taken_at_ms=5)
    for snapshot in (whole_snapshot(), reports_alone):
        assert decode_snapshot(WHERE, encode_snapshot(snapshot)) == snapshot


def test_costs_that_former_versions_published_are_left_out_of_a_snapshot() -> None:
    settings = {"planner": {"learned_costs": False, "margin": 0.1}, "cost": {"model": "learned"}}
    found = decode_snapshot(WHERE, document(costModel={"format": 1}, settings=settings))
    assert found.in_force.planner == {"margin": 0.1}
    assert found.left_out == (f"{WHERE}: costModel, which no decision uses any more",)


def test_a_dump_of_registrations_alone_is_refused() -> None:
    dump = {B1: json.loads(encode_registration(report(B1, 0.9, {LOW: 1.0})))}
    with pytest.raises(MalformedContent, match="registrations without loads"):
        decode_snapshot(WHERE, json.dumps(dump).encode())


def test_a_plain_dump_of_the_brokers_is_a_snapshot() -> None:
    dump = json.dumps(json.loads(document())["brokers"]).encode()
    want = {B1: report(B1, 0.9, {LOW: 1.0}), B2: report(B2, 0.1, {HIGH: 1.0})}
    assert decode_snapshot(WHERE, dump) == Snapshot(reports=want)


def test_nothing_but_brokers_is_required() -> None:
    only = json.dumps({"brokers": json.loads(document())["brokers"]}).encode()
    assert decode_snapshot(WHERE, only).reports.keys() == {B1, B2}


BELOW, CPU = {"usage": -1.0, "limit": 800.0}, 'brokers["b1:8080"].cpu.usage'
OUTSIDE, ALL = "t/ns/0x00000000_0x40000000", "t/other/0x00000000_0xffffffff"
UNKNOWN = "; expected a broker with a load report in brokers"


FAULTS: list[tuple[bytes, str]] = [
    (b"{", "Expecting property name enclosed in double quotes: line 1 column 2"),
    (b"[]", "[]; expected a JSON object"),
    (b"\xff", "expected a JSON object in UTF-8"),
    (b"[" * 100_000, "expected JSON of a sane size and depth"),
    (b'{"brokers":{},"brokers":{}}', "'brokers' twice in an object; expected it once"),
    (b"{}", "brokers is missing; expected load reports of one broker or more, by broker id"),
    (document(version=2), "version = 2; expected 1, the version this program reads"),
    (document(brokers={}), "brokers = {}; expected load reports of one broker or more"),
    (document(brokers=[1]), "brokers = [1]; expected an object"),
    (document(inflight={}), "inflight is unknown; expected one of version, takenAtMs, cluster"),
    (document(brokers={"b1": {}}), 'brokers["b1"]; expected host:port'),
    (document(brokers={B1: 3}), 'brokers["b1:8080"] = 3; expected an object'),
    (first(brokerId=B2), 'brokers["b1:8080"] is the report of b2:8080; expected that of b1:8080'),
    (first(cpu=BELOW), f"{CPU} = -1.0; expected a finite number from 0 to 1e+15"),
    (first(lastStats={LOW: {"msgRateIn": "3"}}), f".lastStats.{LOW}.msgRateIn = '3'; expected a"),
    (document(ageSeconds={B1: -2}), 'ageSeconds["b1:8080"] = -2; expected seconds from 0 to'),
    (document(ageSeconds={"b9:8080": 2}), f'ageSeconds["b9:8080"]{UNKNOWN}'),
    (document(bundles={LOW: {"shortTermData": {"msgRateIn": math.inf}}}), "msgRateIn = inf; expe"),
    (
        document(bundles={LOW: {"longTermData": {"numSamples": 9, "maxSamples": 5}}}),
        f'bundles["{LOW}"].longTermData.numSamples = 9; expected at most maxSamples',
    ),
    (document(bundles={"t/ns": {}}), 'bundles["t/ns"]; expected tenant/namespace/0xLLLLLLLL'),
    (document(boundaries={NS: ["0x00000000", "0x80000000"]}), "'0x80000000']; expected growing b"),
    (document(boundaries={NS: ["0", "1"]}), "expected bounds written 0x and eight hexadecimal"),
    (document(owners={LOW: "b9:8080"}), f'owners["{LOW}"] = b9:8080{UNKNOWN}'),
    (document(owners={LOW: "b9"}), f"owners[\"{LOW}\"] = 'b9'; expected the owning broker"),
    (document(inFlight={OUTSIDE: B1}), f'inFlight["{OUTSIDE}"]; expected a bundle within bounda'),
    (document(owners={ALL: B1}), f'owners["{ALL}"]; expected a bundle within boundaries of t/oth'),
    (
        document(boundaries=None, owners={LOW: B1, "t/ns/0x40000000_0xffffffff": B2}),
        f"= b2:8080; expected a range that does not overlap {LOW} of b1:8080",
    ),
    (first(bundles=[LOW, HIGH]), f".bundles holds {HIGH}; expected a bundle that b1:8080 does not"),
    (first(bundles=[ALL.replace("other", "ns")]), f"expected a range that does not overlap {LOW}"),
    (
        document(constraints={"failureDomains": {"east": {"brokers": ["b1"]}}}),
        "constraints.failureDomains[\"east\"].brokers = ['b1']; expected host:port",
    ),
    (document(constraints={"antiAffinityGroups": {NS: 3}}), '["t/ns"] = 3; expected text'),
    (document(constraints={"staying": ["x"]}), "staying[0] = 'x'; expected tenant/namespace/0x"),
    (document(unowned=["x"]), "unowned[0] = 'x'; expected tenant/namespace/0xLLLLLLLL"),
    (document(unowned=[LOW]), f"{LOW} is in unowned and in owners"),
    (document(takenAtMs=None, memory={}), "takenAtMs is missing; expected the wall clock's millis"),
    (document(memory={"movedAtS": 3}), "cluster.json: memory.movedAtS = 3; expected an object"),
    (document(membershipChangedSecondsAgo="x"), "SecondsAgo = 'x'; expected seconds from 0 to"),
    (document(departedSecondsAgo=[-1]), "departedSecondsAgo.0 = -1; expected seconds from 0"),
    (document(settings={"shedder": {"strategy": "x"}}), "'x'; expected one of AvgShedder, Overlo"),
    (document(settings={"placement": {"strategy": "x"}}), "'x'; expected one of AvgShedder, Least"),
    (document(settings={"planner": 3}), "settings.planner = 3; expected an object"),
    (document(runningLoad={"b9:8080": {"load": 0.1}}), f'runningLoad["b9:8080"]{UNKNOWN}'),
]


@pytest.mark.parametrize(("data", "message"), FAULTS)
def test_each_fault_is_told_with_its_place_and_what_was_expected(data: bytes, message: str) -> None:
    with pytest.raises(MalformedContent, match=re.escape(message)) as caught:
        decode_snapshot(WHERE, data)
    assert str(caught.value).startswith(f"{WHERE}: ")


def test_lenient_leaves_out_what_cannot_be_read_and_says_so() -> None:
    brokers = broker_with(cpu=BELOW)
    data = document(brokers=brokers, owners={LOW: B1, HIGH: B2}, bundles={"x": {}}, inflight={})
    got = decode_snapshot(WHERE, data, lenient=True)
    assert got.reports.keys() == {B2}
    assert got.owners == {HIGH: B2}
    assert [text.removeprefix(f"{WHERE}: ").split(";")[0] for text in got.left_out] == [
        "inflight is unknown",
        'brokers["b1:8080"].cpu.usage = -1.0',
        'bundles["x"]',
        f'owners["{LOW}"] = b1:8080',
    ]


@pytest.mark.parametrize(
    ("second", "at_ms", "listed"),
    [(HIGH, 2000, [{LOW, HIGH}, set()]), ("t/ns/0x40000000_0xc0000000", 0, [{LOW}, {HIGH}])],
    ids=["a bundle of two reports to the later one", "an overlapping range to nobody"],
)
def test_lenient_gives(second: str, at_ms: int, listed: list[set[BundleId]]) -> None:
    got = decode_snapshot(WHERE, first(bundles=[LOW, second], lastUpdate=at_ms), lenient=True)
    assert [set(got.reports[broker].bundles) for broker in (B1, B2)] == listed


def test_lenient_does_without_a_memory_that_cannot_be_read() -> None:
    got = decode_snapshot(WHERE, document(memory={"movedAtS": 3}), lenient=True)
    assert got.memory == RoundMemory()
    assert got.left_out == (f"{WHERE}: memory.movedAtS = 3; expected an object",)


def test_lenient_keeps_one_of_two_overlapping_ranges() -> None:
    parent = BundleId("t/ns/0x00000000_0xffffffff")
    data = document(boundaries=None, owners={LOW: B1, HIGH: B2, parent: B1})
    assert decode_snapshot(WHERE, data, lenient=True).owners == {LOW: B1, HIGH: B2}


def test_lenient_still_needs_a_broker() -> None:
    with pytest.raises(MalformedContent, match="brokers is missing"):
        decode_snapshot(WHERE, b"{}", lenient=True)


def test_two_reports_may_list_a_bundle_on_its_way_or_one_whose_owner_is_told() -> None:
    brokers = broker_with(bundles=[LOW, HIGH])
    in_flight = document(owners=None, inFlight={HIGH: B2}, brokers=brokers)
    assert HIGH in decode_snapshot(WHERE, in_flight).reports[B1].bundles
    assert HIGH in decode_snapshot(WHERE, document(brokers=brokers)).reports[B1].bundles


def test_a_brokers_own_bundle_needs_no_boundaries() -> None:
    own = BundleId("pulsar/b1:8080/0x00000000_0xffffffff")
    assert decode_snapshot(WHERE, document(owners={own: B1})).owners == {own: B1}


@given(
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([B1, LOW, NS, "strategy", "shedder"]), inner, max_size=3
            )
        ),
        max_leaves=5,
    ),
    name=st.sampled_from(sorted(json.loads(encode_snapshot(whole_snapshot())))),
    lenient=st.booleans(),
)
def test_any_value_in_any_field_is_read_or_refused(name: str, value: object, lenient: bool) -> None:
    try:
        got = decode_snapshot(WHERE, document(**{name: value}), lenient=lenient)
    except MalformedContent:
        return
    view_of_snapshot(got)


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
    "shedder", [ThresholdShedder(min_bytes_per_s=0.0), TransferShedder(hits=0, target_std=0.01)]
)
def test_the_planner_decides_on_a_snapshot_as_on_the_live_view(shedder: Shedder) -> None:
    planner = Planner(shedder=shedder)
    tracker, reports = leader_at_work()
    now_s = 1_000_000.0 + 60.0
    live = tracker.view(60.0)
    emas = live.brokers.load_ema.tolist(), live.brokers.bytes_ema.tolist()
    snapshot = Snapshot(
        reports=reports,
        taken_at_ms=int(now_s * 1000),
        age_s=dict(zip(live.brokers.names, live.age_s.tolist(), strict=True)),
        averages=tracker.averages(),
        running=dict(zip(live.brokers.names, map(Running, *emas), strict=True)),
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
    assert [bool(view.bundles.known[view.bundles.index[name]]) for name in (LOW, HIGH)] == [1, 0]


def test_a_broker_without_running_load_among_others_with_it_has_none() -> None:
    view = view_of_snapshot(replace(whole_snapshot(), running={B1: Running(0.4, 3.0)}))
    assert view.brokers.load_ema.tolist() == pytest.approx([0.4, float("nan")], nan_ok=True)


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
    assert owner_of(second.before, orphan) == first.moves[0].target


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
