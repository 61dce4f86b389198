"""What work costs beyond its rates: by its nature, on full brokers, and after it moved."""

import numpy as np
import pytest
from simulated_worlds import AT_ONCE, FREE, PLAIN, QUIET, Stepped, scenario

from loadmanager.simulator.brokers import full_at
from loadmanager.simulator.scenario import Scenario

BROKER = {
    "name": "b", "count": 2, "cores": 4.0, "background": QUIET,
    "cost": FREE | {"cpu_us_per_msg": 100.0},
}  # fmt: skip
"""A broker that 40,000 messages fill."""


def played(hidden: dict[str, float], **others: object) -> Scenario:
    """Return two brokers, of which the first is a quarter busy with two bundles alike."""
    load = {
        "bundles": 2, "topics": 20, "over": "bundles", "msgs_in_per_s": 10_000.0,
        "fan_out": 0.0, "placed_on": ["b-1"],
    }  # fmt: skip
    fields = {"step_s": 10.0, "hand_over": AT_ONCE, "hidden": PLAIN | hidden, **others}
    return scenario(brokers=[BROKER], load=load, **fields)


def cpu(world: Stepped, broker: int) -> float:
    return float(world.moment.use.demand[broker, 0])


def moved(hidden: dict[str, float], **others: object) -> Stepped:
    world = Stepped(played(hidden, **others))
    world.until(10.0)
    world.order(world.world.bundles[0], "b-2")
    return world


def test_bundles_with_the_same_rates_cost_differently_on_average_what_they_should() -> None:
    load = {"bundles": 4000, "topics": 4000, "over": "bundles", "msgs_in_per_s": 4000.0}
    classes = [BROKER | {"count": 4000, "cores": 1.0}]
    unlike = scenario(brokers=classes, load=load, hidden=PLAIN | {"bundle_cpu_spread": 0.3})
    found = Stepped(unlike).moment
    assert np.ptp(found.measured.rates[:, 0]) == pytest.approx(0.0)
    used = found.use.demand[:, 0] / 2e-4
    assert used.mean() == pytest.approx(1.0, abs=0.02)
    assert used.std() == pytest.approx(0.3, abs=0.02)


def test_what_no_rate_shows_is_in_the_bound() -> None:
    world = Stepped(played({"bundle_cpu_spread": 1.0}))
    # Both bundles lie on the first broker; at best each has one of its own.
    first, second = (float(one) for one in world.world._hidden.cpu_factor)
    assert cpu(world, 0) == pytest.approx((first + second) * 0.125)
    assert world.world.bound() == pytest.approx(max(first, second) * 0.125)


def test_a_broker_whose_cpu_grows_is_full_earlier_and_its_bound_is_as_high() -> None:
    world = Stepped(played({"cpu_growth": 0.2}))
    assert cpu(world, 0) == pytest.approx(0.25 * 1.05)
    assert world.world.bound() == pytest.approx(0.125 * 1.025)
    assert world.moment.measured.usage[0, 0] == pytest.approx(400.0 * 0.25 * 1.05)


def test_a_full_broker_whose_cpu_grows_serves_what_then_fits() -> None:
    shift = {"kind": "shift", "at_s": 10.0, "namespace": "tenant/space", "factor": 8.0}
    world = Stepped(played({"cpu_growth": 0.2}, events=[shift]))
    full = world.until(10.0)
    assert full.use.served_fraction[0] == pytest.approx(full_at(0.2) / 2.0)
    assert full.use.usage[0, 0] == pytest.approx(4.0)


def test_a_bundle_that_arrived_costs_more_until_its_caches_are_warm() -> None:
    world = moved({"cold_cpu_factor": 3.0, "cold_s": 40.0})
    found = []
    for now_s in (10.0, 20.0, 30.0, 40.0, 50.0, 60.0):
        world.until(now_s)
        found.append(cpu(world, 1))
    # Twice as much more at first, which falls evenly: 1.75, 1.25, 0.75 and 0.25 in the mean.
    assert found == pytest.approx([0.125 * one for one in (0.0, 2.75, 2.25, 1.75, 1.25, 1.0)])
    assert cpu(world, 0) == pytest.approx(0.125)


def test_clients_that_connect_again_cost_the_new_owner_once() -> None:
    # 10 topics with a producer and a consumer each, 100 ms a client: 2 s of CPU.
    world = moved({"reconnect_cpu_ms": 100.0, "reconnect_spread_s": 15.0})
    world.until(20.0)
    assert cpu(world, 1) - 0.125 == pytest.approx(2.0 * (10 / 15) / 10.0 / 4.0)
    world.until(30.0)
    assert cpu(world, 1) - 0.125 == pytest.approx(2.0 * (5 / 15) / 10.0 / 4.0)
    world.until(40.0)
    assert cpu(world, 1) == pytest.approx(0.125)


# 5,000 messages a second for as long as nobody served, within steps of 10 s.
@pytest.mark.parametrize(
    ("base_s", "hidden", "rates"),
    [
        (5.0, {"backlog_s": 30.0}, [7_500.0, 5_000.0, 5_000.0]),
        (9.0, {"backlog_s": 2.0}, [6_000.0, 5_000.0, 5_000.0]),
        (9.0, {"backlog_s": 30.0, "catch_up_factor": 0.6}, [8_000.0, 6_500.0, 5_000.0]),
    ],
    ids=["all", "as much as producers keep", "at most so fast"],
)
def test_what_came_while_nobody_served_is_sent_afterwards(
    base_s: float, hidden: dict[str, float], rates: list[float]
) -> None:
    world = moved(hidden, hand_over=AT_ONCE | {"base_s": base_s - 1.0, "reconnect_s": 1.0})
    for now_s, rate in zip((20.0, 30.0, 40.0), rates, strict=True):
        world.until(now_s)
        assert world.moment.measured.rates[0, 0] == pytest.approx(rate)
        assert cpu(world, 1) == pytest.approx(0.125 * rate / 5_000.0)


def test_what_a_full_broker_did_not_serve_waits_for_room() -> None:
    events = [
        {"kind": "shift", "at_s": 10.0, "namespace": "tenant/space", "factor": 8.0},
        {"kind": "shift", "at_s": 30.0, "namespace": "tenant/space", "factor": 0.25},
    ]
    world = Stepped(played({"backlog_s": 60.0}, events=events))
    # Of twice what it has, it serves half in two steps: what came in 10 s waits.
    full = world.until(20.0)
    assert full.use.served_fraction[0] == pytest.approx(0.5)
    assert full.use.demand[0, 0] == pytest.approx(2.0)
    # Then half of it is free, and what waits is sent with all of that.
    after = world.until(30.0)
    assert after.use.demand[0, 0] == pytest.approx(1.0)
    assert after.measured.rates[:, 0].sum() == pytest.approx(40_000.0)
