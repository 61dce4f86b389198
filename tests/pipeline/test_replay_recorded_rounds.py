"""Whether recorded rounds are decided again as they were, and how well loads are predicted."""

from functools import cache

import numpy as np
import pytest
from replayed import PAIR, UNEVEN, events, live, replayed, simulated

from loadmanager.pipeline.replay.combinations import combinations
from loadmanager.pipeline.replay.events import Event
from loadmanager.pipeline.replay.judging import evidence_of

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


def test_every_round_of_real_sidecars_is_decided_again_as_recorded() -> None:
    found = replayed(events(live()), [])[-1]
    evidence = evidence_of(found)
    assert (evidence.difference, evidence.refused) == ("", {})
    assert evidence.bases == evidence.reproduced == evidence.rounds >= 12
    assert found["moves"].sum() > 0


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
