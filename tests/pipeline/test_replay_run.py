"""A combination taken through recorded rounds: what it keeps, what it computes, what it follows."""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from planted_advice import late
from replayed import PAIR, UNEVEN, events, frames, live, replayed, scores, simulated
from simulated_worlds import EXACT, FREE, QUIET, scenario

from loadmanager.core.ids import BundleId
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.scores import CPU, MEMORY
from loadmanager.pipeline.replay.combinations import combinations, spread_anew
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.frames import Frame
from loadmanager.pipeline.replay.judging import evidence_of
from loadmanager.pipeline.replay.measures import scores_of
from loadmanager.pipeline.replay.replay_run import Planners, Rules, TrafficCosts
from loadmanager.pipeline.replay.segment_replay import spread_anew as dealt

OTHER = "avg+least_long_term_message_rate"
STILL = "overload+least_long_term_message_rate"
"""Moves nothing where no broker is nearly full."""


@pytest.fixture(name="still", scope="module")
def still_fixture() -> list[Event]:
    """A history in which the leader moved nothing, though half of the brokers did nothing."""
    return events(simulated(STILL))


@pytest.fixture(name="moving", scope="module")
def moving_fixture() -> list[Event]:
    """A history in which it balanced the same."""
    return events(simulated())


def test_without_a_move_a_replay_is_what_was_recorded(still: list[Event]) -> None:
    found = replayed(still, combinations([STILL], []))
    assert not found[-1]["moves"].any()
    for number in (0, 1):
        for name in ("deviation", "max_over_mean", "largest", "overload_broker_s", "bytes_per_s"):
            np.testing.assert_allclose(found[number][name], found[-1][name], rtol=1e-9)
        assert not found[number]["away"].any()


def test_a_replay_tells_what_a_simulation_comes_to(still: list[Event], moving: list[Event]) -> None:
    pairs = (STILL, PAIR, OTHER, "uniform+least_average_usage")
    real = {
        pair: scores(events(simulated(pair)), pair)[""].penalty for pair in (OTHER, pairs[-1])
    } | {STILL: scores(still, STILL)[""].penalty, PAIR: scores(moving, PAIR)[""].penalty}
    assert real[STILL] > 1.3 * max(real[pair] for pair in pairs if pair != STILL)
    for recorded in (still, moving):
        told = scores(recorded, *pairs)
        assert told["as recorded"].moves <= told[""].moves
        assert told["as recorded"].max_over_mean == pytest.approx(told[""].max_over_mean, rel=0.05)
        assert (told[STILL].moves, told[STILL].moved_bytes_per_s) == (0, 0.0)
        assert told[OTHER].moves > 0
        assert told[OTHER].max_over_mean < 0.8 * told[STILL].max_over_mean
        assert 0 < told[OTHER if recorded is still else STILL].away < 1
        for pair in pairs:
            assert told[pair].penalty == pytest.approx(real[pair], rel=0.2)
        assert max(pairs, key=lambda pair: told[pair].penalty) == STILL


def test_replays_are_the_same_each_time_and_together(moving: list[Event]) -> None:
    tried = combinations(["avg+avg", "transfer+least_resource_usage_with_weight", PAIR], [])
    together = replayed(moving, tried)
    for one in tried:
        alone = replayed(moving, [one])[one.number]
        for name, column in together[one.number].items():
            assert column.tolist() == alone[name].tolist(), name


def test_a_slower_hand_over_is_seen_later(still: list[Event]) -> None:
    tried = combinations([OTHER], [])
    at_once, later = (
        replayed(still, tried, rules=Rules(hand_over_s=slow_s))[1]["max_over_mean"]
        for slow_s in (1.0, 200.0)
    )
    balanced = [int(np.argmax(one < 0.7 * one[0])) for one in (at_once, later)]
    assert balanced == [2, 5]


def eventful(*happening: dict[str, Any]) -> list[Event]:
    content = UNEVEN.model_dump(mode="json", exclude_none=True)
    return events(simulated(STILL, type(UNEVEN).model_validate({**content, "events": happening})))


@pytest.mark.parametrize(
    ("kind", "counted"), [("crash", "placed"), ("leave", "placed"), ("drain", "drained")]
)
def test_bundles_of_a_broker_that_goes_are_placed_anew(kind: str, counted: str) -> None:
    happening = eventful({"kind": kind, "at_s": 600.0, "brokers": ["b-2"]})
    found = replayed(happening, combinations([OTHER], []))
    assert found[1][counted].sum() > 0
    np.testing.assert_allclose(found[1]["bytes_per_s"], found[-1]["bytes_per_s"])
    if kind != "drain":
        # Nothing is lost: once all is placed, the traffic is on the brokers that are left.
        mean = found[1]["largest"] / found[1]["max_over_mean"]
        assert mean[-1] == pytest.approx(found[-1]["largest"][-1] / found[-1]["max_over_mean"][-1])


def test_a_broker_that_comes_is_used() -> None:
    happening = eventful(
        {"kind": "leave", "at_s": 10.0, "brokers": ["b-6"]},
        {"kind": "join", "at_s": 600.0, "brokers": ["b-6"]},
    )
    found = replayed(happening, combinations([OTHER], []))
    brokers = found[1]["broker_s"] / found[1]["weight_s"].clip(1e-9)
    assert (brokers[5], brokers[-2]) == (5.0, 6.0)
    assert found[1]["max_over_mean"][-1] < found[-1]["max_over_mean"][-1]


def asked(found: list[Event], number: int, bundle: str, source: str, target: str) -> list[Event]:
    move = {
        "epoch": 1,
        "round": 0,
        "bundle": bundle,
        "source": source,
        "target": target,
        "cause": "requested",
        "outcome": "moved",
    }
    place = 1 + next(
        at for at, one in enumerate(found) if one.kind == "round" and one.body["round"] == number
    )
    return [*found[:place], Event("move", move), *found[place:]]


def owned(frame: Frame, broker: int) -> str:
    return frame.bundles.names[int(frame.owned.of(broker)[0])]


def test_what_people_ordered_is_carried_out_and_parts_of_a_bundle_stay_where_the_whole_was(
    still: list[Event],
) -> None:
    frame = frames(still)[5]
    assert isinstance(frame, Frame)
    bundle, (source, *_, target) = owned(frame, 0), frame.brokers.names
    found = asked(still, 6, bundle, source, target)
    lines = replayed(found, combinations([STILL], []))[1]
    away = lines["away"]
    assert not away[:6].any()
    assert (away[7:] > 0).all()
    assert lines["moves"].sum() == 0
    # People move the whole, in the replay alone; then it is cut, in both.
    namespace, bounds = bundle.rsplit("/", 1)
    low, high = (int(one, 16) for one in bounds.split("_"))
    middle = (low + high) // 2
    parts = [f"{namespace}/0x{a:08x}_0x{b:08x}" for a, b in ((low, middle), (middle, high))]
    place = next(at for at, one in enumerate(found) if one.body.get("round") == 11)
    cut = Event("cut", {"action": "split", "whole": bundle, "parts": parts})
    found = [*found[:place], cut, *(renamed(one, bundle, parts[0]) for one in found[place:])]
    away = replayed(found, combinations([STILL], []))[1]["away"]
    assert (away[7:] > 0).all()
    assert away[-1] == pytest.approx(away[9], rel=0.5)


def renamed(one: Event, bundle: str, name: str) -> Event:
    body: Mapping[str, Any] = one.body
    names = tuple(name if each == bundle else each for each in one.names)
    return Event(one.kind, body, names, one.numbers)


def test_a_leader_that_only_watched_is_taken_at_its_settings_alone() -> None:
    archive = live(observe=True, rounds=4)
    found = scores(events(archive), PAIR, settings=["min_bytes_per_s=0"])
    assert (found[""].moves, found["as recorded"].moves) == (0, 0)
    assert found[f"{PAIR} min_bytes_per_s=0"].moves > 0


TWO_KINDS = scenario(
    brokers=[
        {"name": name, "count": 2, "cores": 4.0, "background": QUIET,
         "cost": FREE | {"cpu_us_per_msg": cost}}
        for name, cost in (("old", 40.0), ("new", 20.0))
    ],
    step_s=10.0,
    duration_s=1200.0,
    load={"bundles": 16, "topics": 160, "msgs_in_per_s": 80_000.0, "message_bytes": 100.0},
    noise=EXACT,
)  # fmt: skip


def test_bundles_share_out_their_brokers_usage() -> None:
    frame = frames(events(simulated(STILL, TWO_KINDS)))[3]
    assert isinstance(frame, Frame)
    costs = TrafficCosts(frame)
    for row in range(len(frame.brokers.names)):
        used = costs.of(frame.owned.of(row)).sum(axis=0)
        assert used[CPU] == pytest.approx(frame.brokers.usage[row, CPU])
        assert used[MEMORY] == 0.0
    np.testing.assert_allclose(
        costs.predicted(frame.rates, frame.owner), frame.brokers.usage, rtol=1e-9
    )


SETTLE_S = 300.0


@pytest.fixture(name="balanced", scope="module")
def balanced_fixture() -> list[Event]:
    """The second half of a history whose strategy had balanced all in the first."""
    return late(events(simulated("joint+joint")), 900.0)


@pytest.fixture(name="frame", scope="module")
def frame_fixture(balanced: list[Event]) -> Frame:
    first = frames(balanced)[0]
    assert isinstance(first, Frame)
    return first


def start(frame: Frame, seed: int = 1) -> list[int]:
    found: list[int] = dealt(frame, Planners().at(frame), np.random.default_rng(seed)).tolist()
    return found


def test_what_another_balanced_does_not_count_for_one_that_is_still(balanced: list[Event]) -> None:
    plain = combinations([STILL], [])
    as_recorded = {number: scores_of(one) for number, one in replayed(balanced, plain).items()}
    # The fault: from the recorded owners it moves nothing, and is about as even as what was
    # recorded, which has one more move.
    assert as_recorded[1].moves == 0
    assert as_recorded[1].max_over_mean == pytest.approx(as_recorded[-1].max_over_mean, rel=0.05)
    rules = Rules(settle_s=SETTLE_S)
    anew = {
        number: scores_of(one)
        for number, one in replayed(balanced, spread_anew(plain), rules=rules).items()
    }
    assert anew[1].moves + anew[1].settling_moves == 0
    assert anew[1].max_over_mean > 1.15 * anew[2].max_over_mean
    assert anew[2].max_over_mean == pytest.approx(anew[-1].max_over_mean, rel=0.1)


def test_rounds_in_which_bundles_settle_are_not_scored(balanced: list[Event]) -> None:
    lines = replayed(balanced, combinations([STILL], []), rules=Rules(settle_s=SETTLE_S))
    for one in lines.values():
        passed_s = (one["at_ms"] - one["at_ms"][0]) / 1000
        assert one["settling"].tolist() == (passed_s < SETTLE_S).tolist()
        assert scores_of(one).covered_s == one["weight_s"][passed_s >= SETTLE_S].sum()


def test_every_broker_gets_as_many_bundles_in_random_order(frame: Frame) -> None:
    one, other = start(frame), start(frame, seed=2)
    assert set(np.bincount(one)) == set(np.bincount(other)) == {8}
    assert one != other
    assert one == start(frame)


def test_isolation_holds_and_what_is_to_stay_stays(frame: Frame) -> None:
    names = frame.bundles.names
    stays = [BundleId(name) for name in names[:5]]
    isolated = IsolationPolicy(namespaces=(".*",), primary=("b-[12].*",))
    policies = Policies(isolation={"few": isolated}, staying=frozenset(stays))
    got = start(replace(frame, policies=policies))
    assert got[:5] == frame.owner.tolist()[:5]
    assert {frame.brokers.names[row].partition(":")[0] for row in got[5:]} == {"b-1", "b-2"}


def test_what_no_broker_may_have_lies_as_recorded(frame: Frame) -> None:
    nowhere = IsolationPolicy(namespaces=(".*",), primary=("none",))
    got = start(replace(frame, policies=Policies(isolation={"none": nowhere})))
    assert got == frame.owner.tolist()


PAIRS = (
    PAIR,
    "avg+avg",
    "transfer+least_resource_usage_with_weight",
    "uniform+round_robin",
    "overload+least_average_usage",
)


@cache
def recorded(pair: str) -> list[Event]:
    """Return the history of a simulation whose every round is a base."""
    return events(simulated(pair, base_every_rounds=1))


@pytest.mark.parametrize("pair", PAIRS)
def test_every_round_of_a_simulation_is_decided_again_as_recorded(pair: str) -> None:
    found = replayed(recorded(pair), [])[-1]
    evidence = evidence_of(found)
    assert (evidence.difference, evidence.refused) == ("", {})
    assert (evidence.bases, evidence.reproduced) == (30, 30)


def test_moves_were_decided_again() -> None:
    """Else the test before would be about rounds that decide nothing."""
    assert sum(bool(moves(recorded(pair))) for pair in PAIRS) >= 3


def test_rounds_with_broken_brokers_are_decided_again_as_recorded() -> None:
    content = UNEVEN.model_dump(mode="json", exclude_none=True)
    happening = [
        {"kind": "crash", "at_s": 310.0, "brokers": ["b-2"]},
        {"kind": "join", "at_s": 700.0, "brokers": ["b-2"]},
        {"kind": "drain", "at_s": 1000.0, "brokers": ["b-5"]},
        {"kind": "restart", "at_s": 1400.0, "brokers": ["b-4"], "drained": False},
    ]
    played = type(UNEVEN).model_validate({**content, "events": happening})
    evidence = evidence_of(replayed(events(simulated(played=played, base_every_rounds=1)), [])[-1])
    assert (evidence.difference, evidence.refused) == ("", {})
    assert evidence.reproduced == evidence.bases == 30


def moves(found: list[Event]) -> list[Event]:
    return [one for one in found if one.kind == "move" and one.body["round"] > 0]


def test_a_move_that_the_settings_do_not_explain_is_told() -> None:
    found = recorded(PAIR)
    one = moves(found)[0]
    target = next(f"b-{at}:8080" for at in range(1, 4) if f"b-{at}:8080" != one.body["source"])
    other = Event("move", {**one.body, "target": target})
    evidence = evidence_of(replayed([other if e is one else e for e in found], [])[-1])
    assert evidence.reproduced == evidence.bases - 1
    name, source = one.body["bundle"], one.body["source"]
    assert evidence.difference.startswith(
        f"round {one.body['round']} of epoch 1: recorded {name} from {source} to {target}, "
        f"replayed {name} from {source} to b-"
    )


def test_a_move_that_is_not_in_the_history_is_told() -> None:
    found = recorded(PAIR)
    last = moves(found)[-1]
    evidence = evidence_of(replayed([one for one in found if one is not last], [])[-1])
    assert evidence.difference.partition(": ")[2].startswith("recorded nothing more, replayed ")


def test_loads_after_recorded_changes_are_predicted_from_the_traffic_alone() -> None:
    """All cost is traffic, and measured with the usual noise of a few percent."""
    found = replayed(events(simulated("uniform+least_average_usage")), combinations([PAIR], []))
    evidence = evidence_of(found[-1])
    assert evidence.changed_count > 0
    assert evidence.changed["cpu"] is not None
    assert evidence.changed["cpu"] < 0.05
    assert evidence.changed["direct_memory"] is None
    assert all(one is None for number in (0, 1) for one in found[number]["errors"])


def test_the_recorded_is_measured_as_the_combinations_are() -> None:
    found = replayed(events(simulated()), combinations([PAIR], []))
    assert found[-1]["weight_s"].tolist() == found[1]["weight_s"].tolist()
    assert found[-1]["at_ms"].tolist() == found[1]["at_ms"].tolist()
    assert np.all(found[-1]["max_over_mean"] >= 1.0)
    assert not found[-1]["away"].any()
