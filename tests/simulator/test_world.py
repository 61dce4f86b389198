"""What brokers are asked for, what they give, and who has what, held to sums by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_worlds import AT_ONCE, FREE, NAMESPACE, PLAIN, QUIET, Stepped, scenario

from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY
from loadmanager.simulator.brokers import full_at
from loadmanager.simulator.scenario import Scenario

ONE_BUNDLE = {"bundles": 1, "topics": 10, "msgs_in_per_s": 1000.0, "message_bytes": 100.0}


def one_broker(cost: dict[str, float], **others: object) -> list[dict[str, object]]:
    plain = {"name": "b", "count": 1, "cores": 4.0, "network_mbit_per_s": 100.0}
    return [{**plain, "memory_mib": 1000.0, "background": QUIET, "cost": FREE | cost, **others}]


def used(cost: dict[str, float], **load: object) -> list[float]:
    alone = Stepped(scenario(brokers=one_broker(cost), load=ONE_BUNDLE | load))
    return [float(one) for one in alone.moment.measured.usage[0]]


@pytest.mark.parametrize(
    ("cost", "resource", "amount"),
    [
        # 1,000 messages in and 1,000 out, each 100 us, are 0.2 cores: 20 percent of one.
        ({"cpu_us_per_msg": 100.0}, CPU, 20.0),
        # 200,000 bytes in and out, each 500 ns, are 0.1 cores.
        ({"cpu_ns_per_byte": 500.0}, CPU, 10.0),
        # 10 topics, each 1 ms a second.
        ({"cpu_us_per_topic_s": 1000.0}, CPU, 1.0),
        # 10 producers and 10 consumers, each 2 ms a second.
        ({"cpu_us_per_connection_s": 2000.0}, CPU, 4.0),
        ({"memory_kib_per_topic": 1024.0}, MEMORY, 10.0),
        ({"memory_kib_per_connection": 1024.0}, MEMORY, 20.0),
        ({"memory_kib_per_msg_per_s": 10.24}, MEMORY, 20.0),
        # 1,000 messages of 100 bytes and 25 around them, each way: 1,000 kbit/s.
        ({"wire_bytes_per_msg": 25.0}, BANDWIDTH_IN, 1000.0),
        ({"wire_bytes_per_msg": 25.0}, BANDWIDTH_OUT, 1000.0),
    ],
)
def test_work_costs_what_classes_say(cost: dict[str, float], resource: int, amount: float) -> None:
    assert used(cost)[resource] == pytest.approx(amount)


def test_what_leaves_is_as_much_as_is_read() -> None:
    found = used({}, fan_out=3.0)
    assert found[BANDWIDTH_OUT] == pytest.approx(3 * found[BANDWIDTH_IN])


def test_limits_and_background_use_are_those_of_the_class_and_direct_memory_is_unknown() -> None:
    background = {
        "cores": 1.0, "memory_mib": 300.0,
        "network_in_mbit_per_s": 5.0, "network_out_mbit_per_s": 7.0,
    }  # fmt: skip
    brokers = one_broker({}, background=background)
    idle = Stepped(scenario(brokers=brokers, load=ONE_BUNDLE | {"msgs_in_per_s": 0.0}))
    assert idle.moment.measured.usage.tolist() == [[100.0, 300.0, 0.0, 5000.0, 7000.0]]
    assert idle.moment.measured.limit.tolist() == [[400.0, 1000.0, 0.0, 1e5, 1e5]]


def test_classes_cost_differently_and_only_the_truth_knows() -> None:
    fast = one_broker({"cpu_us_per_msg": 10.0})
    slow = one_broker({"cpu_us_per_msg": 40.0}, name="s")
    both = Stepped(scenario(brokers=fast + slow, load=ONE_BUNDLE | {"bundles": 2}))
    usage, rates = both.moment.measured.usage[:, CPU], both.moment.measured.rates[:, 0]
    assert usage[1] / rates[1] == pytest.approx(4 * usage[0] / rates[0])


def full(cores: float = 1.0) -> Stepped:
    """Return a broker asked for twice the CPU it has: 2,000 messages of 1 ms on one core."""
    busy = one_broker({"cpu_us_per_msg": 1000.0}, cores=cores)
    return Stepped(scenario(brokers=busy, load=ONE_BUNDLE))


def test_a_broker_asked_for_twice_what_it_has_serves_half() -> None:
    moment = full().moment
    assert moment.use.demand[0, 0] == pytest.approx(2.0)
    assert moment.use.served_fraction.tolist() == pytest.approx([0.5])
    np.testing.assert_allclose(moment.measured.rates, moment.wanted / 2)
    # Usage never exceeds the limit, and the other resources shrink with the traffic.
    usage = moment.measured.usage[0]
    assert usage[CPU] == pytest.approx(100.0)
    assert usage[BANDWIDTH_IN] == pytest.approx(used({})[BANDWIDTH_IN] / 2)
    just_full = full(cores=2.0).moment
    np.testing.assert_allclose(just_full.measured.rates, just_full.wanted)


def test_a_full_broker_serves_what_fits_beside_its_fixed_use() -> None:
    # Its traffic asks for 11 cores beside 4 of others, of its 8.
    busy = one_broker({"cpu_us_per_msg": 5500.0}, cores=8.0, background=QUIET | {"cores": 4.0})
    use = Stepped(scenario(brokers=busy, load=ONE_BUNDLE)).moment.use
    assert use.demand[0, 0] == pytest.approx(15 / 8)
    assert use.served_fraction.tolist() == pytest.approx([4 / 11])
    assert use.usage[0, 0] == pytest.approx(8.0)


TWO_CLASSES = [{"name": "b", "count": 2}, {"name": "c", "count": 2}]


@pytest.mark.parametrize(
    ("brokers", "loads", "owners"),
    [
        (
            2,
            [{"namespace": f"tenant/n{number}", "bundles": 1} for number in range(5)],
            "b1 b2 b1 b2 b1",
        ),
        (TWO_CLASSES, [{"placed_on": ["c"]}], "c1 c2 c1 c2"),
        ([TWO_CLASSES[0], {**TWO_CLASSES[1], "joined": False}], [{}], "b1 b2 b1 b2"),
    ],
    ids=["in turn over all loads", "on the brokers named", "nothing on one that joins later"],
)
def test_bundles_go_round_the_brokers_in_turn(
    brokers: int | list[dict[str, object]], loads: list[dict[str, object]], owners: str
) -> None:
    found = Stepped(scenario(brokers=brokers, load=loads)).owners()
    assert [str(one).replace("-", "") for one in found] == owners.split()


def test_the_bound_counts_on_no_broker_that_is_gone() -> None:
    leave = {"kind": "leave", "at_s": 5.0, "brokers": ["b-1"]}
    classes = one_broker({"cpu_us_per_msg": 1000.0}, count=2)
    load = {"bundles": 100, "topics": 100, "over": "bundles", "msgs_in_per_s": 1000.0}
    played = Stepped(scenario(brokers=classes, load=load, events=[leave]))
    assert played.world.bound() == pytest.approx(0.25)
    played.until(5.0)
    assert played.world.bound() == pytest.approx(0.5)


def test_the_excess_is_of_all_brokers_over_the_water_level() -> None:
    classes = one_broker({"cpu_us_per_msg": 1000.0}, count=4)
    load = {"bundles": 4, "topics": 40, "over": "bundles", "msgs_in_per_s": 1000.0}
    even = Stepped(scenario(brokers=classes, load=load))
    assert even.world.excess(even.moment.use.demand) == pytest.approx(0.0)
    uneven = Stepped(scenario(brokers=classes, load=load | {"placed_on": ["b-1", "b-2"]}))
    # Two of four brokers have twice the level each: one level above it, mean a half.
    assert uneven.world.excess(uneven.moment.use.demand) == pytest.approx(0.5)


def test_a_broker_that_others_use_is_in_no_excess_by_that() -> None:
    noise = {"kind": "noise", "at_s": 5.0, "brokers": ["b-1"], "cores": 3.0, "for_s": 60.0}
    classes = one_broker({"cpu_us_per_msg": 1000.0}, count=2)
    load = {"bundles": 2, "topics": 2, "over": "bundles", "placed_on": ["b-2"]}
    played = Stepped(
        scenario(brokers=classes, load=load | {"msgs_in_per_s": 200.0}, events=[noise])
    )
    played.until(5.0)
    assert played.moment.use.demand[:, 0].tolist() == pytest.approx([0.75, 0.1])
    assert played.world.excess(played.moment.use.demand) == pytest.approx(0.0)


costs = st.fixed_dictionaries({name: st.floats(0, 2000) for name in FREE})


@settings(max_examples=40)
@given(
    cost=costs,
    cores=st.floats(0.1, 64),
    msgs=st.floats(0, 1e6),
    message=st.tuples(st.floats(0, 1e5), st.floats(0, 5)),
    seed=st.integers(0, 9),
)
def test_traffic_is_conserved_and_nobody_serves_more_than_is_asked_for(
    cost: dict[str, float], cores: float, msgs: float, message: tuple[float, float], seed: int
) -> None:
    size, fan_out = message
    load = {
        "bundles": 7, "topics": 12, "msgs_in_per_s": msgs, "message_bytes": size,
        "fan_out": fan_out, "placed": "random",
    }  # fmt: skip
    classes = one_broker(cost, cores=cores, count=3)
    played = Stepped(scenario(brokers=classes, load=load), seed)
    wanted, measured = played.moment.wanted, played.moment.measured
    assert wanted[:, 0].sum() == pytest.approx(msgs)
    assert wanted[:, 3].sum() == pytest.approx(msgs * size * fan_out)
    assert (measured.rates <= wanted).all()
    assert (measured.usage <= measured.limit * (1 + 1e-12)).all()
    fraction = played.moment.use.served_fraction
    for row in range(3):
        mine = measured.owner == row
        np.testing.assert_allclose(measured.rates[mine], wanted[mine] * fraction[row])
    full_at_least_once = (played.moment.use.demand > 1).any(axis=1)
    assert ((fraction < 1) == full_at_least_once).all()


def test_a_namespace_is_shifted_when_its_time_comes() -> None:
    shift = {"kind": "shift", "at_s": 5.0, "namespace": NAMESPACE, "factor": 3.0}
    played = Stepped(scenario(events=[shift]))
    before = played.until(4.0).wanted
    np.testing.assert_allclose(played.until(5.0).wanted, 3 * before)
    assert played.world.world_events.texts == [(5.0, "tenant/space times 3")]


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
