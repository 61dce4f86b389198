"""From lines of history back to what the leader knew at every round."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
from history_sinks import Archive, KeptHistory
from hypothesis import given
from hypothesis import strategies as st
from replay_events import events_of
from replayed import events, frames, live, replayed, simulated, told
from snapshot_of_history import report_of, snapshot_of

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average
from loadmanager.core.history.schema import KINDS, Stream
from loadmanager.core.ids import BrokerId
from loadmanager.core.plan import Cause
from loadmanager.core.rates import Rates
from loadmanager.core.snapshot.document import view_of_snapshot
from loadmanager.pipeline.load_windows import fitting_window_s
from loadmanager.pipeline.replay.events import Averages, Event
from loadmanager.pipeline.replay.frames import (
    BUNDLES_MISSING,
    CLOCK_SET_BACK,
    NO_BASE_YET,
    REPORT_MISSING,
    UNREADABLE,
    CarriedOut,
    CarriedOutMoves,
    Frame,
    Refused,
)
from loadmanager.pipeline.replay.job import EVENT_TABLES
from loadmanager.pipeline.replay.replay_run import recorded_view
from loadmanager.pipeline.replay.spark_tasks import TaskSplit, task_split


@pytest.fixture(name="kept", scope="module")
def kept_fixture() -> KeptHistory:
    """A simulation whose every fifth round is a base."""
    return simulated()


@pytest.fixture(name="archive", scope="module")
def archive_fixture() -> Archive:
    """Real sidecars whose every round is a base."""
    return live()


def refusals(found: list[Frame | Refused]) -> dict[int, str]:
    return {one.number: one.reason for one in found if isinstance(one, Refused)}


@pytest.mark.parametrize("which", ["kept", "archive"])
def test_a_base_gives_the_view_of_its_snapshot(which: str, request: pytest.FixtureRequest) -> None:
    history = request.getfixturevalue(which)
    reports, lines = told(history)
    known = {(BrokerId(name), at): report_of(line) for (name, at), line in reports.items()}
    bases = {one["round"]: one for one in lines if one["kind"] == "round" and one["base"]}
    compared = 0
    for frame in frames(events(history)):
        assert isinstance(frame, Frame)
        if frame.memory is None:
            continue
        bundles = [x for x in lines if x["kind"] == "bundles" and x["round"] == frame.number]
        snapshot = snapshot_of(bases[frame.number], bundles, known)
        want = view_of_snapshot(snapshot)
        got = recorded_view(frame, like_java=False)
        assert got.brokers.names == want.brokers.names
        for name in ("usage", "limit", "traffic", "load_ema", "topics", "connections"):
            np.testing.assert_allclose(getattr(got.brokers, name), getattr(want.brokers, name))
        assert dict(got.top_bundles) == dict(want.top_bundles)
        assert got.moved == want.moved
        for bundle in want.bundles.names:
            assert got.listed_owner(bundle) == want.listed_owner(bundle)
            np.testing.assert_array_equal(got.short_rates(bundle), want.short_rates(bundle))
            assert got.long_rates(bundle) == want.long_rates(bundle)
        assert frame.memory == snapshot.memory
        compared += 1
    assert compared == len(bases)


def test_ticks_give_the_leaders_own_averages_at_rounds_that_are_no_base(archive: Archive) -> None:
    whole = events(archive)
    bases = [one for one in frames(whole) if isinstance(one, Frame)]
    first = bases[0].number

    def without_bases() -> Iterator[Event]:
        for one in whole:
            if one.body.get("round") == first or one.kind not in {"bundles", "round"}:
                yield one
            elif one.kind == "round":
                yield Event("round", {**one.body, "base": False})

    got = frames(without_bases())
    assert len(got) == len(bases)
    for frame, base in zip(got, bases, strict=True):
        assert isinstance(frame, Frame)
        names = base.bundles.names
        for bundle in names:
            row, other = frame.bundles.index[bundle], base.bundles.index[bundle]
            np.testing.assert_allclose(frame.bundles.short[row], base.bundles.short[other])
            np.testing.assert_allclose(frame.bundles.long[row], base.bundles.long[other])


def test_a_segment_may_begin_with_ticks_before_its_first_round_is_told(archive: Archive) -> None:
    """A base's bundles are told at once, its round when its orders are written."""
    reports, lines = told(archive)
    bases = [at for at, one in enumerate(lines) if one["kind"] == "bundles"]
    rounds = [at for at, one in enumerate(lines) if one["kind"] == "round"]
    at = next(at for at, one in enumerate(lines) if at > rounds[2] and one["kind"] == "tick")
    tick, bundles = lines[at], next(one for one in bases if one > at)
    assert tick["sampled"]
    # The first tick after the third round came before its line, and a later one is no base.
    early = [one for place, one in enumerate(lines) if place != at]
    early.insert(rounds[2], tick)
    segment = early[bases[2] :]
    whole = {one.number: one for one in frames(events_of(reports, lines))}
    number = lines[bundles]["round"]
    cut = [
        Event("round", {**one.body, "base": False})
        if one.kind == "round" and one.body["round"] == number
        else one
        for one in events_of(reports, segment)
        if one.kind != "bundles" or one.body["round"] != number
    ]
    found = {one.number: one for one in frames(cut)}
    assert not refusals(list(found.values()))
    got, want = found[number], whole[number]
    assert isinstance(got, Frame)
    assert isinstance(want, Frame)
    assert got.memory is None
    for bundle in want.bundles.names:
        row, other = got.bundles.index[bundle], want.bundles.index[bundle]
        np.testing.assert_allclose(got.bundles.short[row], want.bundles.short[other])


def test_each_round_has_its_moves_and_stands_until_the_next(kept: KeptHistory) -> None:
    _, lines = told(kept)
    rounds = [one for one in lines if one["kind"] == "round"]
    found = frames(events(kept))
    assert [one.number for one in found] == [one["round"] for one in rounds]
    for frame, line, following in zip(found, rounds, [*rounds[1:], rounds[-1]], strict=True):
        assert isinstance(frame, Frame)
        decided = [one for one in frame.moves if one["round"] == frame.number]
        assert len(decided) == line["moves"]
        assert frame.until_s == following["at_ms"] / 1000
    assert sum(line["moves"] for line in rounds) > 0


def changed(kept: KeptHistory, number: int, **fields: Any) -> list[Event]:
    return [
        Event(one.kind, {**one.body, **fields})
        if one.kind == "round" and one.body["round"] == number
        else one
        for one in events(kept)
    ]


def test_a_clock_set_back_ends_what_was_and_the_next_base_begins_anew(kept: KeptHistory) -> None:
    at_ms = next(one.body["at_ms"] for one in events(kept) if one.kind == "round")
    found = frames(changed(kept, 8, at_ms=at_ms - 60_000))
    assert refusals(found) == {8: CLOCK_SET_BACK, 9: NO_BASE_YET, 10: NO_BASE_YET}
    begun = [one.number for one in found if isinstance(one, Frame) and one.begins]
    assert begun == [1, 11]


def test_a_round_whose_report_is_missing_is_left_out_alone(kept: KeptHistory) -> None:
    reports, lines = told(kept)
    line = next(one for one in lines if one["kind"] == "round" and one["round"] == 8)
    before = next(one for one in lines if one["kind"] == "round" and one["round"] == 7)
    missing = set(named(line)) - set(named(before))
    assert missing
    lost = min(missing)
    left = {name: one for name, one in reports.items() if name != lost}
    found = frames(events_of(left, lines))
    (number, *others) = refusals(found)
    assert (number, set(refusals(found).values())) == (8, {REPORT_MISSING})
    assert all(number < 15 for number in others)
    (first, *_) = [one for one in found if isinstance(one, Refused)]
    assert first.detail == f"{lost[0]} reported at {lost[1]}"


def named(line: Mapping[str, Any]) -> list[tuple[str, int]]:
    columns = line["brokers"]
    return list(zip(columns["broker"], columns["reported_at_ms"], strict=True))


def test_without_its_bundles_a_base_is_none_and_the_next_one_begins(kept: KeptHistory) -> None:
    lacking = [x for x in events(kept) if x.kind != "bundles" or x.body["round"] != 6]
    found = frames(lacking)
    assert refusals(found) == {6: BUNDLES_MISSING, **dict.fromkeys(range(7, 11), NO_BASE_YET)}


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"settings": '{"shedder":{"strategy":"magic"}}'}, "strategy = 'magic'"),
        ({"settings": '{"planner":{"margin":7}}'}, "margin"),
        ({"settings": "{"}, "settings = '{'; expected JSON"),
        ({"memory": None}, "memory = None; expected JSON"),
        ({"memory": "[1]"}, "memory"),
    ],
)
def test_odd_bases_are_told(kept: KeptHistory, fields: Mapping[str, Any], told: str) -> None:
    found = frames(changed(kept, 6, **fields))
    assert refusals(found) == {6: UNREADABLE, **dict.fromkeys(range(7, 11), NO_BASE_YET)}
    (first, *_) = [one for one in found if isinstance(one, Refused)]
    assert told in first.detail


def test_every_line_of_leaders_counts_or_each_would_be_a_gap() -> None:
    of_leaders = {name for name, kind in KINDS.items() if kind.stream is Stream.ROUNDS}
    counted = {"lost_rounds" if kind == "lost" else kind for kind in EVENT_TABLES.values()}
    assert counted == of_leaders


@pytest.mark.parametrize(
    ("segments", "combined", "cores", "parts"),
    [(1, 22, 2, 8), (4, 22, 2, 2), (100, 22, 2, 1), (1, 3, 2, 3), (0, 22, 2, 8)],
)
def test_tasks_are_for_all_cores(segments: int, combined: int, cores: int, parts: int) -> None:
    assert task_split(segments, combined, cores) == TaskSplit(segments=segments, parts=parts)


RATE = st.floats(0.0, 1e9)


@given(rates=st.lists(st.lists(RATE, min_size=3, max_size=3), min_size=1, max_size=30))
def test_it_is_the_cores_own_average_to_the_bit(rates: list[list[float]]) -> None:
    found, listed = Averages.none(), np.ones(3, dtype=np.bool_)
    for every in rates:
        found = found.sampled(np.repeat(np.array(every)[:, None], 4, axis=1), np.zeros(3), listed)
    for row, bundle in zip(found.table(3), range(3), strict=True):
        for place, most in ((0, SHORT_SAMPLES), (1, LONG_SAMPLES)):
            average = Average(most, 0, Rates())
            for every in rates:
                average = average.add(Rates(*[every[bundle]] * 4))
            assert row[4 * place : 4 * place + 4].tolist() == list(average.rates.row())
            assert row[8 + place] == average.samples


def test_a_window_has_some_reports_and_is_neither_too_short_nor_too_long() -> None:
    for interval_s, window_s in ((2.0, 10.0), (20.0, 100.0), (900.0, 300.0)):
        assert fitting_window_s(interval_s, min(interval_s, 60.0)) == window_s
    cases = {(60.0, 5.0): 300.0, (0.5, 1.0): 10.0, (5.0, 60.0): 150.0, (20.0, None): 100.0}
    for (interval_s, measured_s), window_s in cases.items():
        assert fitting_window_s(interval_s, measured_s) == window_s
    assert fitting_window_s(None, None) == 300.0


A, B = "t/n/0x00000000_0x80000000", "t/n/0x80000000_0xffffffff"


def move(bundle: str = A, *, epoch: int = 3, outcome: str = "moved") -> dict[str, Any]:
    ends = {"source": "b1:8080", "target": "b2:8080", "cause": "overloaded"}
    return {"epoch": epoch, "round": 1, "bundle": bundle, "outcome": outcome, **ends}


def task(state: str, bundle: str = A, **other: Any) -> dict[str, Any]:
    return {
        "epoch": 3,
        "task": 1,
        "action": "move",
        "bundles": [bundle],
        "source": "b1:8080",
        "target": "b2:8080",
        "cause": "overloaded",
        "asked_by": "balancing",
        "state": state,
    } | other


def carried_out(bundle: str = A) -> CarriedOut:
    return CarriedOut(bundle, "b1:8080", "b2:8080", Cause.OVERLOADED)


ONE = (carried_out(),)
BOTH = (carried_out(), carried_out(B))
SPLIT = {"cause": "oversized"}


@pytest.mark.parametrize(
    ("lines", "counted"),
    [
        pytest.param(
            [move(), move(B, outcome="placed"), move(outcome="failed"), move(outcome="observed")],
            BOTH,
            id="without tasks each that was ordered",
        ),
        *(
            pytest.param([task("ordered"), move(), task(state)], (), id=state)
            for state in ("failed", "superseded", "timed_out", "landed_elsewhere")
        ),
        pytest.param(
            [task("ordered"), move(), task("released"), task("serving")],
            ONE,
            id="once, when its target serves",
        ),
        pytest.param(
            [task("unconfirmed"), move(outcome="failed"), task("ordered"), task("serving")],
            ONE,
            id="a move whose reply was lost",
        ),
        pytest.param(
            [task("serving", asked_by="reconciliation", cause="inherited")],
            (),
            id="an order of a former leader",
        ),
        pytest.param([task("serving", action="split", **SPLIT)], (), id="a split"),
        pytest.param([task("serving", action="merge", **SPLIT)], (), id="a merge"),
        pytest.param(
            [move(B, epoch=2), task("ordered"), move(), task("serving")],
            BOTH,
            id="a former term without tasks",
        ),
    ],
)
def test_moves_count_as_carried_out(
    lines: list[dict[str, Any]], counted: tuple[CarriedOut, ...]
) -> None:
    found = CarriedOutMoves()
    for line in lines:
        (found.task if "task" in line else found.move)(line)
    assert found.taken() == counted


def test_a_term_keeps_its_tasks_from_round_to_round() -> None:
    found = CarriedOutMoves()
    found.task(task("ordered"))
    found.move(move())
    assert found.taken() == ()
    found.move(move(B))
    found.task(task("serving"))
    assert found.taken() == (carried_out(),)
    assert found.taken() == ()


def test_a_live_history_has_the_same_moves_by_its_tasks_as_without_them() -> None:
    found = events(live())
    assert any(one.kind == "task" for one in found)
    old = [one for one in found if one.kind != "task"]
    by_tasks, by_moves = replayed(found, [])[-1], replayed(old, [])[-1]
    assert 0 < by_tasks["moves"].sum() <= by_moves["moves"].sum()
    last = [one for one in found if one.kind == "task" and one.body["state"] == "serving"][-1]
    cut = [one for one in found if one is not last]
    ended = Event("task", {**last.body, "state": "superseded"})
    spoilt = [*cut[: found.index(last)], ended, *cut[found.index(last) :]]
    fewer = replayed(spoilt, [])[-1]
    assert fewer["moves"].sum() == by_tasks["moves"].sum() - 1
