"""What brokers are asked for, what they give, and who has what, held to sums by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_worlds import FREE, NAMESPACE, QUIET, Stepped, scenario

from loadmanager.core.scores import BANDWIDTH_IN, BANDWIDTH_OUT, CPU, MEMORY

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


def test_the_bound_is_below_what_is_there_and_above_nothing() -> None:
    played = Stepped(scenario(brokers=3, load={"bundles": 30, "topics": 300, "msgs_in_per_s": 9e4}))
    assert 0 < played.world.bound() <= played.moment.use.demand.max()


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
