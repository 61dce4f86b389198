"""What is reported of a broker that joins while a simulation goes on."""

import pytest
from simulated_worlds import EXACT, Told, broker, run, scenario

from loadmanager.core.load import LoadReport


def reports_of(
    name: str, event: dict[str, object], step_s: float, seed: int
) -> list[tuple[float, LoadReport]]:
    brokers = [{"name": "b", "count": 2}, {"name": "late", "count": 1, "joined": False}]
    told = Told()
    events = [event | {"brokers": [name]}]
    played = scenario(brokers=brokers, duration_s=300.0, step_s=step_s, noise=EXACT, events=events)
    run(played, seed=seed, witness=told)
    return [one for one in told.reports if one[1].broker == broker(name)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("step_s", [2.0, 10.0])
def test_no_report_of_a_broker_is_older_than_the_broker(step_s: float, seed: int) -> None:
    told = reports_of("late-1", {"kind": "join", "at_s": 130.0}, step_s, seed)
    first_s, first = told[0]
    assert first.started_at_ms == 130_000
    assert 130.0 <= first_s < 130.0 + step_s
    assert all(one.reported_at_ms >= one.started_at_ms for _, one in told)


@pytest.mark.parametrize("seed", range(4))
def test_no_report_of_a_new_life_is_older_than_that_life(seed: int) -> None:
    # It is down for less than a step: what stands in its node is replaced without a gap.
    restart: dict[str, object] = {"kind": "restart", "at_s": 121.0, "down_s": 6.0}
    told = reports_of("b-1", restart | {"drained": False}, 10.0, seed)
    lives = {one.started_at_ms for _, one in told}
    assert lives == {0, 127_000}
    assert all(0 <= one.started_at_ms <= one.reported_at_ms for _, one in told)
    assert min(at_s for at_s, one in told if one.started_at_ms) <= 130.0
