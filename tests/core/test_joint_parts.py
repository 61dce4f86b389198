"""The parts of the joint strategy: what it learns, how it places, what it hands on."""

import json
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from joint_cluster import CPU_PER_MSG, Broker, Traffic, decided, learned, view
from small_view import bundle

from loadmanager.core.cluster import ClusterView
from loadmanager.core.errors import MalformedContent
from loadmanager.core.filters import Limits
from loadmanager.core.ids import BrokerId
from loadmanager.core.joint.broker_figures import BrokerFigures
from loadmanager.core.joint.costs import JointCosts
from loadmanager.core.joint.deciding import learned_from
from loadmanager.core.joint.document import MOST_BROKERS, MOST_BYTES, decode_joint, encode_joint
from loadmanager.core.joint.persistence import LOOK_S, Persistence
from loadmanager.core.joint.restarts import Restarts
from loadmanager.core.joint.search import Search
from loadmanager.core.joint.standing import Standing, standing, water_level
from loadmanager.core.joint.state import JointState
from loadmanager.core.joint.unit_costs import solved
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.placement import JointPlacement
from loadmanager.core.planner import Planner
from loadmanager.core.projection import TrafficShare
from loadmanager.core.scores import BANDWIDTH_IN, CPU, ResourceWeights
from loadmanager.core.shedding import JointShedder, Shed


def after_minutes(brokers: dict[str, Broker], minutes: int = 20) -> JointState:
    """Return what is learned while the traffic of the bundles varies."""
    rng, numbers = np.random.default_rng(2), sorted(k for b in brokers.values() for k in b.bundles)

    def traffic() -> dict[int, Traffic]:
        return {
            k: Traffic(msgs=rng.uniform(500, 9000), size=float(rng.choice([10, 4000])))
            for k in numbers
        }

    return learned(view(brokers, traffic(), now_s=60.0 * m) for m in range(1, minutes + 1))


def four(**given: Broker) -> dict[str, Broker]:
    keys = ("a:1", "b:1", "c:1", "d:1")
    every = {key: Broker(bundles=range(5 * k, 5 * k + 5)) for k, key in enumerate(keys)}
    return {**every, **{f"{key}:1": one for key, one in given.items()}}


def test_what_messages_and_bytes_cost_is_learned() -> None:
    costs = after_minutes(four()).learned.unit_costs
    assert costs[CPU, :2].sum() == pytest.approx(2 * CPU_PER_MSG, rel=0.1)
    assert costs[BANDWIDTH_IN, 2] == pytest.approx(8e-3, rel=0.05)
    assert (costs >= 0).all()


def test_costs_that_nothing_speaks_for_are_zero() -> None:
    sums = after_minutes(four()).learned.sums
    assert not solved(replace(sums, moment=np.full_like(sums.moment, -1e9))).any()


def test_a_slow_broker_and_a_busy_one_are_told_apart() -> None:
    state = after_minutes(four(a=Broker(bundles=range(5), speed=1.5)), minutes=60)
    speed = state.learned.brokers.speed[:, CPU]
    assert speed[0] / speed[1:].mean() == pytest.approx(1.5, rel=0.12)
    busy = after_minutes(four(a=Broker(bundles=range(5), background=0.4)), minutes=30)
    assert busy.learned.brokers.background[0, CPU] == pytest.approx(0.4, abs=0.1)


def test_a_full_broker_does_not_teach_that_traffic_is_cheap() -> None:
    usual = after_minutes(four())
    traffic = {k: Traffic(msgs=60_000) for k in range(5)}
    seen = view(four(), traffic, now_s=60.0 * 21)
    full = learned_from(seen, usual)
    assert seen.brokers.usage[0, CPU] == seen.brokers.limit[0, CPU]
    before, after = (one.learned.unit_costs[CPU, :2].sum() for one in (usual, full))
    assert after == pytest.approx(before, rel=0.1)


def test_a_broker_that_was_never_seen_but_full_is_full_of_its_traffic() -> None:
    brokers = {"a:1": Broker(bundles=range(40), background=0.1)}
    traffic = dict.fromkeys(range(40), Traffic(msgs=5500.0))
    state = learned(view(brokers, traffic, now_s=60.0 * minute) for minute in range(1, 11))
    assert state.learned.brokers.background[0, CPU] < 0.4


def test_what_costs_are_supposed_to_be_does_not_follow_the_supposed_background() -> None:
    state = after_minutes(four(a=Broker(bundles=range(5), background=0.4)), minutes=3)
    usage = view(four(a=Broker(bundles=range(5), background=0.4))).brokers.usage[:, CPU]
    assert (state.learned.brokers.background[:, CPU] < usage).all()


def jittering(*, told: bool, busy_from: int = 1000) -> list[float]:
    """Return the background that is learned each minute of a broker whose usage jitters.

    Whether its reports have ``told`` the variance; from ``busy_from`` on another process
    uses 0.3 there for good.
    """
    state, rng, found = None, np.random.default_rng(1), []
    for minute in range(60):
        seen = view(four(), dict.fromkeys(range(20), Traffic(msgs=12_000)), now_s=60.0 * minute)
        usage, variance = seen.brokers.usage.copy(), seen.brokers.variance.copy()
        limit, sd = seen.brokers.limit[0, CPU], 0.1
        usage[0, CPU] += limit * (rng.normal(0.0, sd) + (0.3 if minute >= busy_from else 0.0))
        if told:
            variance[:] = 0.0
            variance[0, CPU] = (sd * limit) ** 2
        brokers = seen.brokers.having(usage=usage, variance=variance)
        brokers.__dict__.pop("reported")
        state = learned_from(replace(seen, brokers=brokers), state)
        found.append(float(state.learned.brokers.background[0, CPU]))
    return found


def test_what_varies_by_the_brokers_own_report_is_not_put_down_to_its_background() -> None:
    steady, restless = (np.std(jittering(told=told)[5:]) for told in (True, False))
    assert steady < 0.02
    assert restless > 0.06
    assert np.mean(jittering(told=True, busy_from=30)[50:]) == pytest.approx(0.3, abs=0.06)


def test_a_variance_that_no_report_tells_leaves_the_error_of_the_model() -> None:
    traffic = dict.fromkeys(range(20), Traffic(msgs=12_000))
    knows = learned(view(four(), traffic, now_s=now_s) for now_s in (60.0, 120.0)).learned
    columns = view(four(), traffic, now_s=180.0).brokers
    assert np.isnan(columns.variance).all()
    alone = knows.measured_error(columns)[:, CPU]
    varied = np.full_like(columns.variance, (0.1 * columns.limit[0, CPU]) ** 2)
    more = knows.measured_error(columns.having(variance=varied))[:, CPU]
    assert more == pytest.approx(alone + 0.01)
    assert alone == pytest.approx((0.03 * columns.usage[:, CPU] / 800.0 + 0.005) ** 2)
    young = learned([view(four(), traffic)]).learned.measured_error(columns)[:, CPU]
    assert young == pytest.approx(alone + 0.03**2)


def test_work_explains_what_is_reported_though_the_first_reports_were_of_an_idle_time() -> None:
    idle = {"usage": (1.0, 0.0, 0.0, 0.0, 0.0)}
    brokers = {
        key: Broker(bundles=of, changed=given)
        for key, of, given in (
            ("a:1", range(15), idle),
            ("b:1", range(15, 20), idle),
            ("c:1", (), {}),
        )
    }
    traffic = dict.fromkeys(range(20), Traffic(msgs=9_000))
    began = [view(brokers, traffic, now_s=10.0)]
    brokers = {key: replace(one, changed={}) for key, one in brokers.items()}
    began += [view(brokers, traffic, now_s=10.0 * k) for k in (2, 3, 4)]
    state = learned(began)
    at = standing(began[-1], state, ResourceWeights(memory=0.0), np.ones(3, dtype=np.bool_))
    reported = began[-1].brokers.usage[:, CPU] / began[-1].brokers.limit[:, CPU]
    assert at.level == pytest.approx(reported.mean(), rel=0.3)


def test_a_report_over_a_change_neither_anchors_nor_makes_urgent() -> None:
    """It has no variance, as none of its time has; the usage may be of before the change."""
    traffic = dict.fromkeys(range(20), Traffic(msgs=12_000))

    def seen(now_s: float, varied: float, background: float = 0.0) -> ClusterView:
        given = {"a:1": Broker(bundles=range(5), background=background)}
        brokers = {**four(), **given}
        changed = {"variance": (varied,) * 5}
        return view(
            {key: replace(one, changed=changed) for key, one in brokers.items()},
            traffic,
            now_s=now_s,
        )

    known = learned([seen(10.0, 1.0), seen(20.0, 1.0)])
    urgent, uses = [], []
    for varied in (1.0, np.nan):
        now = seen(30.0, varied, background=0.7)
        state = learned_from(now, known)
        at = standing(now, state, ResourceWeights(memory=0.0), np.ones(4, dtype=np.bool_))
        urgent.append(bool(at.urgent[0]))
        uses.append(float(at.low[0, at.resources.index("cpu")] * at.level))
    assert urgent == [True, False]
    assert uses[1] < 0.5 < uses[0]


def test_a_report_teaches_once() -> None:
    seen = view(four(), now_s=60.0)
    once = learned_from(seen, None)
    again = learned_from(replace(seen, now_s=61.0), once)
    assert np.array_equal(again.learned.brokers.background, once.learned.brokers.background)
    assert (again.learned.sums.weight <= once.learned.sums.weight).all()


def test_brokers_that_restart_or_join_are_unknown_and_the_others_stay() -> None:
    state = after_minutes(four(a=Broker(bundles=range(5), background=0.4)))
    kept = state.learned.brokers
    reborn = view(four(a=Broker(bundles=range(5), changed={"started_at_ms": 7})))
    found = kept.of(reborn.brokers)
    assert found.background[0, CPU] == 0.0
    assert np.array_equal(found.speed[1:], kept.speed[1:])
    assert kept.of(view(four()).brokers) is kept
    assert BrokerFigures.unknown().of(reborn.brokers).names == reborn.brokers.names


def rows_kept(seen: ClusterView, first: ClusterView) -> ClusterView:
    return replace(seen, bundles=replace(seen.bundles, names=first.bundles.names))


def rounds(
    brokers: dict[str, Broker], traffic: Callable[[int], dict[int, Traffic]], minutes: int
) -> list[Shed]:
    first = view(brokers)
    views = (view(brokers, traffic(m), now_s=60.0 * m) for m in range(1, minutes + 1))
    return decided(rows_kept(one, first) for one in views)


def test_a_burst_moves_nothing_once_bursts_were_seen_to_pass() -> None:
    rng = np.random.default_rng(3)

    def traffic(_minute: int) -> dict[int, Traffic]:
        msgs = (12_000.0 if rng.random() < 0.15 else 4000.0 for _ in range(24))
        return {k: Traffic(msgs=one, long_msgs=5200.0) for k, one in enumerate(msgs)}

    brokers = {f"{key}:1": Broker(bundles=range(k * 8, k * 8 + 8)) for k, key in enumerate("abc")}
    found = rounds(brokers, traffic, 80)
    memory = found[-1].memory
    assert memory.joint is not None
    assert memory.joint.persistence.lasting < 0.2
    assert sum(len(shed.offers) for shed in found) <= 3
    assert not any(shed.offers for shed in found[40:])


def test_what_stays_is_weighed_by_what_it_is_now() -> None:
    brokers = {"a:1": Broker(bundles=range(4)), "b:1": Broker(bundles=range(4, 8))}
    grown = {k: Traffic(msgs=12_000.0 if k < 2 else 4000.0, long_msgs=5200.0) for k in range(8)}
    memory = rounds(brokers, lambda _minute: grown, 79)[-1].memory
    assert memory.joint is not None
    assert memory.joint.persistence.lasting > 0.95


def test_snapshots_of_other_rows_are_not_compared() -> None:
    state = after_minutes(four(), minutes=30)  # Each view numbers its bundles anew.
    assert not state.persistence.looked_at.any()
    assert len(state.persistence.snapshots) == 1


CHANCE = st.lists(st.floats(0, 1), min_size=4, max_size=4)


@given(
    st.lists(CHANCE, max_size=3),
    CHANCE,
    CHANCE,
    st.sampled_from([0.0, 0.005, 0.02]),
    st.integers(0, 2**32 - 1),
)
def test_use_is_as_measured_while_owners_and_traffic_stay(
    starts: list[list[float]],
    backgrounds: list[float],
    speeds: list[float],
    noise: float,
    seed: int,
) -> None:
    # Whatever was reported while the brokers started, and whatever they cost.
    rng, state, measured = np.random.default_rng(seed), None, []
    keys = tuple(four())
    # Where traffic uses little, and brokers are alike, rates decide.
    settled = np.array([0.05 + 0.15 * one for one in backgrounds])
    rounds = [np.array(one) for one in starts] + [settled] * 8
    for minute, of in enumerate(rounds, 1):
        varied = np.maximum(of + rng.uniform(-noise, noise, 4), 0.0)
        brokers = {
            key: Broker(
                bundles=range(5 * k, 5 * k + 5), speed=0.8 + 0.8 * speeds[k], background=varied[k]
            )
            for k, key in enumerate(keys)
        }
        seen = view(brokers, {k: Traffic(msgs=11_000.0) for k in range(20)}, now_s=60.0 * minute)
        state = learned_from(seen, state)
        measured.append(seen.brokers.usage[:, CPU] / seen.brokers.limit[:, CPU])
    assert state is not None
    at = standing(seen, state, ResourceWeights(), np.ones(4, dtype=np.bool_))
    last = np.mean(measured[-3:], axis=0)
    # 0.005 of it is for rates: at these levels they have 1.5 percent of the say.
    near = 0.035 + 5 * noise + 0.5 * np.sqrt(state.learned.noise[CPU]) + 1e-9
    cpu = at.resources.index("cpu")
    for use in (at.low, at.high):
        assert (np.abs(use[:, cpu] * at.level - last) <= near).all()
    assert (at.background >= 0).all()


@given(
    st.lists(st.tuples(st.floats(0, 2), st.floats(0.1, 100)), min_size=1, max_size=8),
    st.floats(0, 1000),
)
def test_water_fills_to_one_level(brokers: list[tuple[float, float]], total: float) -> None:
    background, capacity = (np.array(one) for one in zip(*brokers, strict=True))
    level = water_level(background, capacity, total)
    poured = (np.maximum(level - background, 0.0) * capacity).sum()
    assert poured == pytest.approx(total, rel=1e-6, abs=1e-6)


def test_a_swap_takes_nothing_off_a_broker_that_may_stand_low() -> None:
    at = Standing(
        level=0.5,
        resources=("cpu",),
        low=np.array([[1.06], [0.95]]),
        high=np.array([[1.06], [2.0]]),
        background=np.zeros((2, 1)),
        unit=np.ones((2, 1)),
        share=np.ones((2, 1)),
        cost=np.array([[0.05], [0.2]]),
        effort=np.zeros(2),
        owner=np.array([0, 1]),
        urgent=np.zeros(2, dtype=np.bool_),
    )
    every = np.ones(2, dtype=np.bool_)
    limits = Limits(gives=every, takes=every, movable=every)
    search = Search(at=at, limits=limits, prices=np.zeros(2))
    search.run()
    assert not search.found
    assert search.stuck[0].bundle == 0


@pytest.mark.parametrize(
    ("one", "other", "at_most"),
    [
        ([157, 46, 22, 17, 14], [123, 119], 1.04),
        ([123, 63, 43], [111, 85, 12], 1.06),
        ([156, 82, 76, 19, 10], [134, 127, 47, 34], 1.05),
    ],
)
def test_what_a_round_plans_first_is_planned_again_where_two_bundles_are_too_many(
    one: list[int], other: list[int], at_most: float
) -> None:
    """A third broker is empty, and each of the heaviest two bundles alone fits it well."""
    cost = 3.0 * np.array([*one, *other]) / sum(one + other)
    owner = np.repeat([0, 1], [len(one), len(other)])
    use = np.bincount(owner, cost, minlength=3).astype(np.float64)
    at = Standing(
        level=1.0,
        resources=("cpu",),
        low=use[:, np.newaxis],
        high=use[:, np.newaxis],
        background=np.zeros((3, 1)),
        unit=np.ones((3, 1)),
        share=np.ones((3, 1)),
        cost=cost[:, np.newaxis],
        effort=np.zeros(len(cost)),
        owner=owner,
        urgent=np.zeros(3, dtype=np.bool_),
    )
    every = np.ones(3, dtype=np.bool_)
    limits = Limits(gives=every, takes=every, movable=np.ones(len(cost), dtype=np.bool_))
    search = Search(at=at, limits=limits, prices=0.3 * (cost + 1.5 / len(cost)))
    search.run()
    for row, move in search.found.items():
        assert move.bundle == row
        assert owner[row] == move.source != move.target
        use[[move.source, move.target]] += cost[row] * np.array([-1, 1])
    assert use.max() <= at_most


@given(st.integers(0, 10_000))
@example(8)  # A bundle is planned to stay after all.
def test_a_search_ends_by_itself_whatever_is_believed_of_the_brokers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = rng.uniform(0.0, 2.0, (2, 4, 1))
    at = Standing(
        level=1.0,
        resources=("cpu",),
        low=low,
        high=high,
        background=np.zeros((4, 1)),
        unit=rng.uniform(0.5, 2.0, (4, 1)),
        share=np.ones((4, 1)),
        cost=rng.uniform(0.0, 1.0, (12, 1)),
        effort=np.zeros(12),
        owner=rng.integers(0, 4, 12),
        urgent=np.zeros(4, dtype=np.bool_),
    )
    every = np.ones(4, dtype=np.bool_)
    limits = Limits(gives=every, takes=every, movable=np.ones(12, dtype=np.bool_))
    Search(at=at, limits=limits, prices=np.zeros(12)).run()
    assert limits.steps.left > 19_000_000


def test_costs_are_of_the_broker_that_serves() -> None:
    brokers = four(a=Broker(bundles=range(5), speed=1.5))
    costs = JointCosts(after_minutes(brokers, minutes=40).learned)
    seen = view(brokers, dict.fromkeys(range(20), Traffic(msgs=5000)))
    here = costs.usage(seen, bundle(1), BrokerId("a:1"))
    there = costs.elsewhere(seen, bundle(1), BrokerId("a:1"), here, np.array([1, 2]))
    assert here[CPU] > 1.2 * there[0, CPU]
    nobodys = costs.usage(seen, bundle(1), None)
    assert nobodys[CPU] > 0


def test_a_bundle_that_was_never_measured_costs_what_the_fallback_says() -> None:
    seen = view(four(), {0: Traffic(measured=False)})
    costs = JointCosts(learned_from(seen, None).learned)
    share = TrafficShare()
    for one in (bundle(0), bundle(77)):
        usage = costs.usage(seen, one, None)
        assert np.array_equal(usage, share.usage(seen, one, None))
        assert costs.elsewhere(seen, one, None, usage, np.array([0, 1])).shape == (2, 5)
    assert JointShedder().costs(Memory(), share) is share


def test_placements_go_where_the_potential_rises_least() -> None:
    traffic = dict.fromkeys(range(20), Traffic(msgs=4000))
    brokers = four(d=Broker(bundles=range(15, 16)))
    seen = view(brokers, traffic)
    state = learned_from(seen, None)
    memory, every = Memory(joint=state), np.arange(4)
    rank = JointPlacement().rank
    assert rank(seen, every, bundle(1), memory).best.tolist() == [3]
    assert rank(seen, every[:3], bundle(1), memory).best.tolist() != [3]
    assert rank(seen, every[:0], bundle(1), memory).best.tolist() == []


@pytest.mark.parametrize("case", ["unlearned", "unknown", "unmeasured", "quiet", "no limits"])
def test_placements_go_by_messages_where_usage_says_nothing(case: str) -> None:
    traffic = dict.fromkeys(range(20), Traffic(msgs=3.0 if case == "quiet" else 4000.0))
    if case == "unmeasured":
        traffic[1] = Traffic(measured=False)
    brokers = four(d=Broker(bundles=range(15, 16)))
    if case == "no limits":
        brokers = {key: replace(one, known=False) for key, one in brokers.items()}
    seen = view(brokers, traffic)
    memory = Memory(joint=None if case == "unlearned" else learned_from(seen, None))
    placed = bundle(99 if case == "unknown" else 1)
    assert JointPlacement().rank(seen, np.arange(4), placed, memory).best.tolist() == [3]


def test_many_placements_at_once_are_spread() -> None:
    traffic = dict.fromkeys(range(20), Traffic(msgs=3000))
    brokers = four(d=Broker(bundles=()))
    seen = view(brokers, {**traffic, **dict.fromkeys(range(15, 20), Traffic(msgs=3000))})
    planner = Planner(shedder=JointShedder(), placement=JointPlacement())
    memory = RoundMemory(shedder=JointShedder().watch(seen, Memory()))
    placed = planner.place(seen, map(bundle, range(1, 9)), memory, np.random.default_rng(1))
    given_to = [move.target for move in placed.moves]
    assert len(given_to) == 8
    assert given_to.count(BrokerId("d:1")) >= 5
    assert len(set(given_to)) > 1


def test_what_was_learned_survives_being_written() -> None:
    state = after_minutes(four(a=Broker(bundles=range(5), speed=1.5)))
    found = decode_joint("/m", encode_joint(state), 5.0)
    assert found.learned.at_s == 5.0
    assert found.learned.unit_costs == pytest.approx(state.learned.unit_costs, rel=1e-5, abs=1e-12)
    kept, brokers = state.learned.brokers, found.learned.brokers
    assert brokers.names == kept.names
    assert brokers.started_at_ms == kept.started_at_ms
    assert brokers.speed == pytest.approx(kept.speed, rel=1e-3)
    assert brokers.background == pytest.approx(kept.background, rel=1e-3)
    assert found.persistence.lasting == state.persistence.lasting
    assert found.persistence.lasting_new == state.persistence.lasting_new
    assert found.persistence.turnover == state.persistence.turnover
    seen = view(four(), now_s=60.0)
    assert learned_from(seen, found).learned.brokers.names == seen.brokers.names
    empty = encode_joint(learned_from(view({}), None))
    assert decode_joint("/m", empty, 0.0).learned.brokers.names == ()


def test_how_much_of_changes_lasts_survives_being_written() -> None:
    state = replace(after_minutes(four()), persistence=changes(100, stay_for=30))
    found = decode_joint("/m", encode_joint(state), 0.0).persistence
    assert found.lasted == pytest.approx(state.persistence.lasted)
    assert found.looked_at == pytest.approx(state.persistence.looked_at)
    assert [found.lasting, found.lasting_new] == pytest.approx(
        [state.persistence.lasting, state.persistence.lasting_new]
    )


def test_a_broker_with_impossible_usage_leaves_what_is_known_of_the_others_readable() -> None:
    odd = Broker(bundles=range(5), changed={"usage": (1e15,) * 5, "limit": (0.001,) * 5})
    state = after_minutes(four(a=odd), minutes=3)
    assert state.learned.brokers.names[0] == "a:1"
    found = decode_joint("/m", encode_joint(state), 5.0).learned.brokers.names
    assert found == state.learned.brokers.names[1:]


def test_no_cluster_makes_it_too_large() -> None:
    rng, count = np.random.default_rng(1), MOST_BROKERS + 5
    names = tuple(BrokerId(f"broker-{k}.pulsar.example.org:8080") for k in range(count))
    unknown = BrokerFigures.unknown(names, (1_700_000_000_000,) * count)
    figures = replace(
        unknown,
        background=rng.random(unknown.background.shape),
        speed=1 + rng.random(unknown.speed.shape),
        covariance=rng.random(unknown.covariance.shape),
    )
    state = after_minutes(four())
    large = replace(
        state,
        learned=replace(state.learned, brokers=figures),
        restarts=Restarts(back_s={one: rng.random() for one in names}),
    )
    data = encode_joint(large)
    assert len(data) <= MOST_BYTES
    assert len(decode_joint("/m", data, 0.0).learned.brokers.names) == MOST_BROKERS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("format", 2),
        ("gram", [0.0] * 244),
        ("gram", [-1e29] * 245),
        ("moment", "none"),
        ("costs", [0.0]),
        ("weight", [float("1e31")] * 5),
        ("noise", None),
        ("persistence", [0.0] * 7),
        ("persistence", [*[0.0] * 7, "x"]),
        ("persistence", [0.0, 0.0, -1.0, 0.0, 1.0, 0.8, 0.0, 0.0]),
        ("persistence", [0.0, 0.0, 1.0, 2.0, 1.0, 0.8, 0.0, 0.0]),
        ("brokers", []),
        ("brokers", {"a:1": [0]}),
        ("brokers", {"a:1": "x"}),
        ("brokers", {"a:1": [0.5, *[0.0] * 25]}),
        ("brokers", {"a:1": [-5, *[0.0] * 25]}),
        ("brokers", {"a:1": [5, *["x"] * 25]}),
        ("brokers", {"no broker": [5, *[0.0] * 25]}),
        ("restarted_ago_s", []),
        ("restarted_ago_s", {"a:1": -1.0}),
        ("restarted_ago_s", {"no broker": 1.0}),
    ],
)
def test_what_cannot_have_been_written_is_refused(field: str, value: object) -> None:
    found = json.loads(encode_joint(after_minutes(four(), minutes=1)))
    found[field] = value
    with pytest.raises(MalformedContent, match="/m"):
        decode_joint("/m", json.dumps(found).encode(), 0.0)


def seen_twice(then: list[float], now: list[float], passed_s: float = LOOK_S) -> Persistence:
    """Return what is known of bundles whose deviations were these at two looks."""
    known, rows = Persistence(), [bundle(k) for k in range(max(len(then), len(now)))]
    for at_s, deviation in ((0.0, then), (passed_s, now)):
        long = np.ones(len(deviation))
        known = known.after(
            at_s, rows, long + np.array(deviation), long, owner=np.arange(len(long))
        )
    return known


def test_of_a_deviation_counts_what_was_there_at_the_look_before() -> None:
    known = seen_twice([0.0, 0.5, 1.0, -1.0, 2.0], [1.0, 1.0, 1.0, 1.0, 0.0])
    assert known.confirmed.tolist() == [0.0, 0.5, 1.0, 0.0, 0.0]
    assert seen_twice([1.0], [4.0, 1.0]).confirmed.tolist() == [0.25, 1.0]
    assert seen_twice([0.0], [1.0], LOOK_S - 1).confirmed.tolist() == [1.0]  # No look before.


def test_a_change_counts_at_once_where_that_is_urgent_or_the_bundle_is_new() -> None:
    known = seen_twice([0.0, 0.0], [1.0, 1.0])
    found = known.lasting_of(3, np.array([False, True, False]))
    assert found.tolist() == [0.0, known.lasting, known.lasting]
    assert known.lasting_of(1, np.array([False])).tolist() == [0.0]


def changes(minutes: int, stay_for: int) -> Persistence:
    """Return what is known of bundles whose traffic changes, each at another minute of an hour.

    A change is gone again after ``stay_for`` minutes, or replaced by the next.
    """
    known, rows, long = Persistence(), [bundle(k) for k in range(40)], np.ones(40)
    rng = np.random.default_rng(5)
    changed, at = np.zeros(40), rng.integers(0, 60, 40)
    for minute in range(minutes):
        since = (minute + at) % 60
        changed = np.where(since == 0, rng.normal(0.0, 0.5, 40), changed)
        known = known.after(
            60.0 * minute, rows, long + changed * (since < stay_for), long, owner=np.arange(40)
        )
    return known


def test_of_a_new_change_counts_as_much_as_such_changes_were_seen_to_last() -> None:
    assert Persistence().lasting_new == 0.0
    assert changes(200, stay_for=60).lasting_new > 0.7
    assert changes(200, stay_for=2).lasting_new < 0.1


def burst_of(msgs: float, minutes: int) -> int:
    """Return how many bundles move by minutes after those of one broker grew to so much."""
    brokers = {"a:1": Broker(bundles=range(12)), "b:1": Broker(bundles=range(12, 24))}

    def traffic(minute: int) -> dict[int, Traffic]:
        now = msgs if minute >= 5 else 4000.0
        return {k: Traffic(msgs=now if k < 12 else 4000.0, long_msgs=4000.0) for k in range(24)}

    return sum(len(shed.offers) for shed in rounds(brokers, traffic, 4 + minutes))


def test_traffic_that_just_grew_moves_nothing_before_it_lasted_unless_the_broker_is_full() -> None:
    assert burst_of(8000.0, 2) == 0
    assert burst_of(8000.0, 3) > 0
    assert burst_of(15_000.0, 1) > 0
