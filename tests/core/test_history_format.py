import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from small_view import bundle, make_view
from snapshot_of_history import report_of

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.bundle_task import (
    AskedBy,
    BundleTask,
    Pause,
    TaskEvent,
    TaskKind,
    advanced,
    task_of,
)
from loadmanager.core.cluster import ClusterView
from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.files import FileName, hour_of, hour_of_partition, partition
from loadmanager.core.history.reading import read_line
from loadmanager.core.history.records import (
    Origin,
    Record,
    RoundFacts,
    bundles_records,
    encode,
    record_of,
    report_record,
    round_records,
    task_records,
)
from loadmanager.core.history.schema import (
    CUT,
    HAND_OVER,
    KINDS,
    LOST_REPORTS,
    LOST_ROUNDS,
    OPTIMALITY,
    SHADOW,
    TERM_CHANGE,
    TICK,
    Stream,
)
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BrokerUrls, BundleStats, LoadReport, ResourceUsage
from loadmanager.core.memory import ROUND_MEMORY, RoundMemory
from loadmanager.core.optimality import Optimality
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause, Move
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.rates import Rates
from loadmanager.core.shadow import Shadowed

ORIGIN = Origin("prod", BrokerId("b1:8080"), "5f2a90c1d07be344")
B1, B2 = BrokerId("b1:8080"), BrokerId("b2:8080")
A, B = BundleId("t/n/0x00000010_0x00000020"), BundleId("t/n/0x00000020_0x00000030")
NOON_MS = 1_795_262_400_000
MOMENT = "milliseconds since 1970, a whole number before"

REPORT = LoadReport(
    broker=B1,
    urls=BrokerUrls(http_url="http://b1:8080"),
    sidecar_url="http://b1:7750",
    reported_at_ms=NOON_MS - 5,
    started_at_ms=NOON_MS - 60_000,
    version="3.0",
    cpu=ResourceUsage(123.4, 400.0, mean=120.5, variance=36.0),
    bandwidth_in=ResourceUsage(0.5, 1e6),
    bundles={A: BundleStats(msgs_in_per_s=0.1, bytes_out_per_s=2e9, topics=3, producers=2)},
    gains=frozenset({A}),
)

TOLD = report_record(REPORT, at_ms=NOON_MS, due="age", interval_s=None, window_s=2.0)
LINE = json.loads(encode(TOLD, ORIGIN, 7))

TASK = task_of(Move(A, B1, B2, Cause.IMBALANCE), AskedBy.BALANCING, number=1, epoch=3)

Hot = tuple[ClusterView, Plan]


@pytest.fixture(name="hot")
def hot_fixture() -> Hot:
    """A round in which b1 sheds one of its bundles to b2, and its view."""
    view = replace(
        make_view({B1: (0.95, {1: 9e6, 2: 2e7}), B2: (0.1, {})}), membership_changed_s=-1e3
    )
    plan = Planner().round(view, RoundMemory(), np.random.default_rng(1))
    assert plan.moves
    assert plan.refusals
    return view, plan


def told(**changes: Any) -> RoundFacts:
    known = {"at_ms": NOON_MS, "epoch": 3, "round": 5, "outcome": "moved", "took_s": 0.01}
    return RoundFacts(**{**known, "planner": Planner(), "steering": "active", **changes})


def written(records: list[Record]) -> list[Mapping[str, Any]]:
    return [
        read_line(f"line {seq}", encode(record, ORIGIN, seq))
        for seq, record in enumerate(records, start=1)
    ]


def test_a_report_says_all_that_the_agent_published() -> None:
    (line,) = written([TOLD])
    figures = {"msgs_in_per_s": 0.1, "bytes_out_per_s": 2e9, "topics": 3, "producers": 2}
    none = dict.fromkeys(("msgs_out_per_s", "bytes_in_per_s", "consumers", "cache_bytes"), 0)
    assert line["bundles"] == {
        name: [one] for name, one in {"bundle": A, **figures, **none}.items()
    }
    assert (line["cpu_usage"], line["cpu_limit"], line["memory_limit"]) == (123.4, 400.0, 0.0)
    assert (line["bytes_out_per_s"], line["topics"], line["gains"]) == (2e9, 3, [A])
    assert (line["seq"], line["at_ms"], line["writer"]) == (1, NOON_MS, B1)
    assert (line["interval_s"], line["window_s"], line["due"]) == (None, 2.0, "age")


def test_a_report_says_how_usage_varied_and_comes_back_but_for_its_addresses() -> None:
    (line,) = written([TOLD])
    assert (line["cpu_mean"], line["cpu_variance"]) == (120.5, 36.0)
    assert (line["bandwidth_in_mean"], line["bandwidth_in_variance"]) == (None, None)
    assert report_of(line) == replace(REPORT, urls=BrokerUrls(http_url=""), sidecar_url="")


def test_a_report_of_a_version_that_told_no_variance_is_read_as_null() -> None:
    former = {
        name: value for name, value in LINE.items() if not name.endswith(("_mean", "_variance"))
    }
    assert len(LINE) - len(former) == 10
    line = read_line("f", json.dumps(former).encode())
    assert (line["cpu_mean"], line["memory_variance"]) == (None, None)
    assert report_of(line).cpu == ResourceUsage(123.4, 400.0)
    with pytest.raises(MalformedContent, match="cpu_variance = 'x'; expected"):
        read_line("f", json.dumps({**former, "cpu_variance": "x"}).encode())


def test_a_report_whose_columns_are_known_already_is_told_in_the_same_line() -> None:
    columns = {name: items for name, items in TOLD.body["bundles"].items() if name != "bundle"}
    known = report_record(
        REPORT, at_ms=NOON_MS, due="age", interval_s=None, window_s=2.0, columns=columns
    )
    assert encode(known, ORIGIN, 7) == encode(TOLD, ORIGIN, 7)


def test_a_line_begins_with_its_envelope_so_that_its_kind_is_found_without_parsing() -> None:
    assert encode(TOLD, ORIGIN, 7).startswith(
        b'{"schema":1,"kind":"report","cluster":"prod","writer":"b1:8080",'
        b'"instance":"5f2a90c1d07be344","seq":7,"at_ms":1795262400000,"broker":"b1:8080",'
    )


def test_a_round_says_what_the_leader_saw_and_why_it_left_the_rest_alone(hot: Hot) -> None:
    view, plan = hot
    line, *moves = written(round_records(told(reported_at_ms={B1: 99}), view, plan, 4))
    brokers = line["brokers"]
    assert brokers["broker"] == [B1, B2]
    assert brokers["reported_at_ms"] == [99, None]
    assert brokers["score"] == pytest.approx([0.95, 0.1])
    assert brokers["bundles"] == [2, 0]
    assert line["refusals"]["reason"] == [one.reason.value for one in plan.refusals]
    assert (line["base"], line["memory"], line["constraints"]) == (False, None, None)
    assert json.loads(line["settings"])["shedder"]["strategy"] == "threshold"
    assert [move["move"] for move in moves] == [4 + at for at in range(len(plan.moves))]
    assert (moves[0]["source"], moves[0]["target"], moves[0]["outcome"]) == (B1, B2, "moved")
    assert moves[0]["source_score"] == pytest.approx(0.95)


def test_a_base_round_brings_every_bundle_and_the_memory(hot: Hot) -> None:
    view, plan = hot
    average = Average(10, 4, Rates(1.0, 2.0, 3.0, 4.0))
    averages = {A: BundleAverages(average, average, 2), B: BundleAverages(average, average, 0)}
    base = told(averages=averages, memory=RoundMemory())
    bundles, line, *_ = written([*bundles_records(base, view), *round_records(base, view, plan, 1)])
    assert bundles["bundles"]["bundle"] == [A, B]
    assert bundles["bundles"]["owner"] == [B1, B1]
    assert bundles["bundles"]["long_bytes_out_per_s"] == [4.0, 4.0]
    assert bundles["bundles"]["short_samples"] == [4, 4]
    assert (bundles["part"], bundles["parts"], line["base"]) == (1, 1, True)
    assert json.loads(line["memory"]) == ROUND_MEMORY.to_json(RoundMemory())
    assert json.loads(line["constraints"])["failureDomains"] == {}


def test_the_bundles_of_a_large_cluster_are_spread_over_several_lines(hot: Hot) -> None:
    supposed = BundleAverages.supposed()
    averages = {bundle(number): supposed for number in range(2001)}
    lines = written([*bundles_records(told(averages=averages), hot[0])])
    assert [(one["part"], one["parts"]) for one in lines] == [(1, 3), (2, 3), (3, 3)]
    assert [len(one["bundles"]["bundle"]) for one in lines] == [1000, 1000, 1]


def test_a_move_whose_order_does_not_stand_failed_whatever_became_of_the_others(hot: Hot) -> None:
    view, plan = hot
    (move,) = plan.moves
    plan = replace(plan, moves=(move, Move(A, None, B2, Cause.UNOWNED)))
    outcomes = []
    for not_ordered in ({move.bundle}, {A}, ()):
        _, *moves = written(round_records(told(not_ordered=not_ordered), view, plan, 1))
        outcomes.append([one["outcome"] for one in moves])
    assert outcomes == [["failed", "placed"], ["moved", "failed"], ["moved", "placed"]]


def test_a_move_that_was_only_observed_is_told_as_such(hot: Hot) -> None:
    view, plan = hot
    plan = Plan(moves=(), observed=plan.moves, refusals=(), memory=plan.memory)
    *_, move = written(round_records(told(outcome="observed"), view, plan, 1))
    assert (move["kind"], move["outcome"]) == ("move", "observed")


FOUND = Optimality(largest=0.6, bound=0.4, bound_within_policies=0.48, excess=0.125)


def test_the_distance_from_the_best_is_a_line_of_its_own() -> None:
    (line,) = written([record_of(OPTIMALITY, NOON_MS, FOUND, epoch=3, round=7)])
    assert (line["epoch"], line["round"], line["at_ms"]) == (3, 7, NOON_MS)
    assert (line["largest"], line["bound"], line["bound_within_policies"]) == (0.6, 0.4, 0.48)
    assert (line["gap"], line["gap_within_policies"]) == pytest.approx((0.5, 0.25))
    assert line["excess"] == 0.125


SHADOWED = Shadowed(
    largest=0.5, gap=0.25, active_gap=0.5, moves=3, moved=0.1, active_moves=1, active_moved=0.05
)


def test_what_a_strategy_would_have_had_is_a_line_of_its_own() -> None:
    record = record_of(SHADOW, NOON_MS, SHADOWED, epoch=3, round=7, strategy="JointShedder")
    (line,) = written([record])
    assert (line["epoch"], line["round"], line["strategy"]) == (3, 7, "JointShedder")
    assert (line["largest"], line["gap"], line["active_gap"]) == (0.5, 0.25, 0.5)
    assert (line["moves"], line["moved"]) == (3, 0.1)
    assert (line["active_moves"], line["active_moved"]) == (1, 0.05)


def test_every_kind_can_be_written_and_read_back(hot: Hot) -> None:
    average = BundleAverages.supposed()
    hand_over = record_of(
        HAND_OVER,
        NOON_MS,
        epoch=3,
        bundle=A,
        source=None,
        target=B2,
        outcome="finished",
        ordered_at_ms=NOON_MS,
        released_at_ms=None,
        acquired_at_ms=NOON_MS + 30,
        took_s=0.03,
        pause_s=None,
    )
    lost: dict[str, Any] = {"records": 2, "why": "queue_full", "first_at_ms": 1, "last_at_ms": 2}
    lines = written(
        [
            TOLD,
            *bundles_records(told(averages={A: average}), hot[0]),
            *round_records(told(averages={A: average}, memory=RoundMemory()), *hot, 1),
            record_of(TERM_CHANGE, NOON_MS, epoch=3, event="began"),
            record_of(
                TICK,
                NOON_MS,
                epoch=3,
                round=1,
                tick=6,
                sampled=True,
                taken={"broker": [B1], "reported_at_ms": [9]},
                left=[B2],
            ),
            hand_over,
            *task_records(NOON_MS, TASK, 0.0),
            record_of(CUT, NOON_MS, epoch=3, action="split", whole=A, parts=[B]),
            record_of(OPTIMALITY, NOON_MS, FOUND, epoch=3, round=7),
            record_of(SHADOW, NOON_MS, SHADOWED, epoch=3, round=7, strategy="JointShedder"),
            record_of(LOST_REPORTS, NOON_MS, **lost),
            record_of(LOST_ROUNDS, NOON_MS, **lost),
        ]
    )
    assert {line["kind"] for line in lines} == set(KINDS)


def test_a_number_that_json_does_not_know_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        encode(Record("report", 1, {"window_s": float("nan")}), ORIGIN, 1)


def test_fields_stay_in_their_order_and_those_of_a_later_version_come_last_as_null() -> None:
    assert read_line("x", json.dumps({**LINE, "colour": "red"}).encode())["colour"] == "red"
    assert list(read_line("x", json.dumps(LINE).encode())) == list(LINE)
    added = KINDS["report"].added
    former = {name: value for name, value in LINE.items() if name not in added}
    found = read_line("x", json.dumps(former).encode())
    assert list(found) == [*former, *added]
    assert {found[name] for name in added} == {None}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": 2}, "schema = 2; expected 1, the version this program reads"),
        ({"schema": None}, "schema = None; expected a whole number from 0 to 2^40"),
        ({"kind": "gossip"}, "kind = 'gossip'; expected one of report, lost_reports, term,"),
        ({"seq": -1}, "seq = -1; expected a whole number from 0 to 2^60"),
        ({"seq": 1.5}, "seq = 1.5; expected a whole number from 0 to 2^60"),
        ({"at_ms": True}, f"at_ms = True; expected {MOMENT}"),
        ({"at_ms": 4_102_444_800_000}, f"at_ms = 4102444800000; expected {MOMENT}"),
        ({"reported_at_ms": 2**63 - 1}, f"reported_at_ms = 9223372036854775807; expected {MOMENT}"),
        ({"writer": 3}, "writer = 3; expected text"),
        ({"draining": 1}, "draining = 1; expected true or false"),
        ({"cpu_usage": -0.5}, "cpu_usage = -0.5; expected a finite number from 0 to 1e+24"),
        ({"cpu_usage": None}, "cpu_usage = None; expected a finite number from 0 to 1e+24"),
        ({"window_s": "2"}, "window_s = '2'; expected a finite number from 0 to 1e+24 or null"),
        ({"gains": "all"}, "gains = 'all'; expected a list, of each text"),
        ({"gains": [A, 1]}, "gains[1] = 1; expected text"),
        ({"bundles": []}, "bundles = []; expected an object"),
        (
            {"bundles": {**LINE["bundles"], "topics": [1, 2]}},
            "bundles has lists of 1 and 2 items; expected lists of one length",
        ),
        (
            {"bundles": {**LINE["bundles"], "bytes_in_per_s": [-1]}},
            "bundles.bytes_in_per_s[0] = -1; expected a finite number from 0 to 1e+24",
        ),
    ],
)
def test_each_fault_is_told_with_its_place_and_what_was_expected(
    change: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(MalformedContent) as refused:
        read_line("x", json.dumps({**LINE, **change}).encode())
    assert str(refused.value).startswith(f"x: {message}")


@pytest.mark.parametrize("name", [one for one in LINE if one not in KINDS["report"].added])
def test_no_field_may_be_missing(name: str) -> None:
    kept = {key: value for key, value in LINE.items() if key != name}
    with pytest.raises(MalformedContent, match=f"x: {name} is missing"):
        read_line("x", json.dumps(kept).encode())


@pytest.mark.parametrize(
    "line", [b"", b"{", b"[1]", b'{"schema":1', b"\xff", encode(TOLD, ORIGIN, 1)[:-40]]
)
def test_half_a_line_is_no_line(line: bytes) -> None:
    with pytest.raises(MalformedContent):
        read_line("x", line)


NAME = "rounds-b1_8080-5f2a90c1d07be344-000000000731.jsonl.gz"


def test_a_moment_lies_in_the_folder_of_its_hour() -> None:
    for at_ms, hour in ((1_795_262_399_999, 11), (1_795_262_400_000, 12)):
        folder = partition(hour_of(at_ms))
        assert folder == f"date=2026-11-21/hour={hour}"
        assert hour_of_partition(folder) == hour_of(at_ms)


@pytest.mark.parametrize(
    "folder",
    ["date=2026-02-30/hour=01", "date=2026-01-01/hour=24", "date=2026-01-01", "x/hour=01", ""],
)
def test_other_folders_are_no_partition(folder: str) -> None:
    assert hour_of_partition(folder) is None


@pytest.mark.parametrize("writer", ["b1:8080", "[::1]:8080", "b-1.example.com:8080"])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_file_name_says_whose_it_is(writer: str, is_open: bool) -> None:
    whole = FileName.of(Stream.REPORTS, Origin("c", BrokerId(writer), "ab12"), 7)
    name = FileName(whole.stream, whole.writer, whole.instance, whole.first_seq, is_open=is_open)
    assert FileName.parse(str(name)) == name
    assert str(name).startswith("_") is is_open
    assert not set(str(name)) & set("/:[] ")


def test_the_document_s_example_is_a_name() -> None:
    name = FileName(Stream.ROUNDS, "b1_8080", "5f2a90c1d07be344", 731)
    assert (str(name), FileName.parse(f"_{NAME}")) == (
        NAME,
        FileName(Stream.ROUNDS, "b1_8080", "5f2a90c1d07be344", 731, is_open=True),
    )


@pytest.mark.parametrize(
    "name", ["", "part-0000.jsonl.gz", NAME.replace("rounds", "gossip"), NAME.removesuffix(".gz")]
)
def test_foreign_files_are_told_by_their_names(name: str) -> None:
    assert FileName.parse(name) is None


X = BundleId("t/n/0x00000000_0x80000000")
HALVES = SplitOrder("range_equally_divide")
WRITTEN, RELEASED, DONE = TaskEvent.ORDER_WRITTEN, TaskEvent.SOURCE_RELEASED, TaskEvent.DONE
Events = Mapping[float, TaskEvent]


def task(events: Events, **changes: Any) -> BundleTask:
    """Return a task that was proposed at second 0, after what happened at which second."""
    proposal = task_of(Move(X, B1, B2, Cause.OVERLOADED), AskedBy.BALANCING)
    one = replace(proposal, number=4, epoch=7, **changes)
    for at_s, event in events.items():
        one = advanced(one, event, at_s)
    return one


def lines(one: BundleTask, now_s: float) -> list[tuple[str, Mapping[str, Any]]]:
    at_ms = NOON_MS + round(1000 * now_s)
    return [(record.kind, record.body) for record in task_records(at_ms, one, now_s)]


def hand_overs(one: BundleTask, now_s: float) -> list[Mapping[str, Any]]:
    return [body for kind, body in lines(one, now_s) if kind == "hand_over"]


def test_each_state_of_a_task_is_a_line() -> None:
    one = task({0.25: WRITTEN, 0.5: TaskEvent.REPEATED, 1.0: RELEASED})
    of_task = {"epoch": 7, "task": 4, "action": "move", "bundles": [X], "source": B1, "target": B2}
    why = {"cause": "overloaded", "asked_by": "balancing", "note": ""}
    state = {"state": "released", "age_s": 1.0, "attempts": 2}
    assert lines(one, 1.0) == [("task", of_task | why | state)]


def test_clients_wait_from_the_source_s_end_until_the_target_serves() -> None:
    one = task({0.25: WRITTEN, 1.0: RELEASED, 1.75: DONE})
    of_move = {"epoch": 7, "bundle": X, "source": B1, "target": B2, "outcome": "finished"}
    times = {"ordered_at_ms": 250, "released_at_ms": 1000, "acquired_at_ms": 1750}
    waits = {"took_s": 1.5, "pause_s": 0.75}
    at_ms = {name: NOON_MS + after_ms for name, after_ms in times.items()}
    assert hand_overs(one, 2.0) == [of_move | at_ms | waits]


def test_a_pause_that_was_measured_is_an_interval() -> None:
    ordered = task({0.25: WRITTEN})
    one = advanced(ordered, DONE, 1.75, pause=Pause(0.25, 1.5))
    (ended,) = hand_overs(one, 2.0)
    seen = {"seen_before_ms": NOON_MS + 250, "seen_after_ms": NOON_MS + 1500, "pause_s": 1.25}
    assert {name: ended[name] for name in seen} == seen


def test_the_clients_of_a_bundle_without_an_owner_wait_since_its_order() -> None:
    one = task({0.5: WRITTEN, 2.5: DONE}, kind=TaskKind.PLACE, source=None)
    (ended,) = hand_overs(one, 2.5)
    assert (ended["source"], ended["released_at_ms"], ended["pause_s"]) == (None, None, 2.0)
    assert (ended["outcome"], ended["took_s"]) == ("finished", 2.0)


def test_an_order_that_is_repeated_is_one_hand_over() -> None:
    one = task({0.0: WRITTEN, 5.0: TaskEvent.REPEATED, 6.0: DONE})
    assert [ended["took_s"] for ended in hand_overs(one, 6.0)] == [6.0]


@pytest.mark.parametrize(
    ("event", "outcome"),
    [
        (TaskEvent.REPLACED, "replaced"),
        (TaskEvent.GAVE_UP, "replaced"),
        (TaskEvent.EXPIRED, "replaced"),
        (TaskEvent.SERVED_ELSEWHERE, "replaced"),
        (TaskEvent.TERM_ENDED, "left"),
    ],
)
@pytest.mark.parametrize("released", [False, True])
def test_an_order_that_did_not_bring_the_bundle_there_says_what_became_of_it(
    event: TaskEvent, outcome: str, *, released: bool
) -> None:
    one = task({0.0: WRITTEN, **({1.0: RELEASED} if released else {}), 2.0: event})
    (ended,) = hand_overs(one, 2.0)
    assert (ended["outcome"], ended["epoch"]) == (outcome, 7)
    assert ended["released_at_ms"] == (NOON_MS + 1000 if released else None)
    assert (ended["acquired_at_ms"], ended["took_s"], ended["pause_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("events", "changes"),
    [
        pytest.param({1.0: WRITTEN}, {}, id="not ended"),
        pytest.param({1.0: TaskEvent.REPLY_LOST, 2.0: TaskEvent.TERM_ENDED}, {}, id="perhaps not"),
        pytest.param({1.0: TaskEvent.ORDER_REFUSED}, {}, id="never ordered"),
        pytest.param({1.0: WRITTEN, 2.0: DONE}, {"source": B2}, id="there already"),
        pytest.param({1.0: WRITTEN, 2.0: DONE}, {"asked_by": AskedBy.RECONCILIATION}, id="another"),
        pytest.param(
            {1.0: WRITTEN, 2.0: DONE}, {"kind": TaskKind.SPLIT, "splits": {X: HALVES}}, id="a split"
        ),
    ],
)
def test_only_orders_of_this_term_that_move_a_bundle_and_ended_are_hand_overs(
    events: Events, changes: Mapping[str, Any]
) -> None:
    assert [kind for kind, _ in lines(task(events, **changes), 2.0)] == ["task"]
