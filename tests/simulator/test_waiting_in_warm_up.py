"""Clients wait before and after the end of the warm-up: what counts is the time after it."""

import pytest
from simulated_worlds import AT_ONCE, EXACT, run, scenario

from loadmanager.simulator.results import scores_of
from loadmanager.simulator.scenario import Scenario


def crashing(warm_up_s: float) -> Scenario:
    """Return two brokers with ten clients each, one of which dies at 100 s."""
    return scenario(
        duration_s=300.0,
        load={"bundles": 2, "topics": 10, "over": "bundles"},
        events=[{"kind": "crash", "at_s": 100.0, "brokers": ["b-1"]}],
        warm_up_s=warm_up_s,
        hand_over=AT_ONCE | {"session_timeout_s": 30.0},
        noise=EXACT,
    )


def cold(warm_up_s: float) -> Scenario:
    return scenario(
        duration_s=60.0,
        load={"bundles": 2, "topics": 10, "over": "bundles", "placed": "unowned"},
        warm_up_s=warm_up_s,
        hand_over=AT_ONCE | {"order_s": 2.0, "reconnect_s": 1.0},
        noise=EXACT,
    )


def interrupted_client_s(played: Scenario) -> float:
    return scores_of(run(played)).interrupted_client_s


@pytest.mark.parametrize("warm_up_s", [0.0, 100.0, 110.0, 112.5, 131.0, 200.0])
def test_waiting_for_a_crashed_broker_counts_from_the_end_of_the_warm_up(warm_up_s: float) -> None:
    all_s = interrupted_client_s(crashing(0.0)) / 10
    assert 30.0 <= all_s <= 32.0
    want_s = max(100.0 + all_s - max(warm_up_s, 100.0), 0.0)
    assert interrupted_client_s(crashing(warm_up_s)) == pytest.approx(10 * want_s)


@pytest.mark.parametrize("warm_up_s", [1.0, 2.25, 10.0])
def test_waiting_for_a_first_owner_counts_from_the_end_of_the_warm_up(warm_up_s: float) -> None:
    clients = 20
    all_s = interrupted_client_s(cold(0.0)) / clients
    assert all_s == pytest.approx(3.0)
    want = clients * max(all_s - warm_up_s, 0.0)
    assert interrupted_client_s(cold(warm_up_s)) == pytest.approx(want)


def test_clients_that_wait_until_the_end_are_counted_from_the_end_of_the_warm_up() -> None:
    played = crashing(110.0).model_copy(update={"duration_s": 120.0})
    assert interrupted_client_s(played) == pytest.approx(10 * 10.0)
    assert run(played).interrupted_client_s == pytest.approx(10 * 20.0)


def test_the_warm_up_changes_nothing_in_what_happens() -> None:
    assert run(crashing(110.0)).moves == run(crashing(0.0)).moves
    assert run(crashing(110.0)).interrupted_client_s == run(crashing(0.0)).interrupted_client_s
