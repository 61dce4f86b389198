"""What a modelled leader sees and decides, held to the tally of a live one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modelled_cluster import BROKERS, BUNDLES, NOISE, Cluster, planner, settled
from simulated_worlds import AT_ONCE, EXACT, Stepped, broker, run, scenario

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.plan import Cause
from loadmanager.simulator.agents import Reported
from loadmanager.simulator.engine import Emptying


class Reference:
    """A live leader's tally, fed with the reports themselves, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.tracker = LoadTracker(weights=cluster.planner.weights)
        self.unseen: list[tuple[float, Reported | BrokerId]] = []
        self.stood = [False] * 4

    def step(self, published: tuple[Reported, ...]) -> None:
        cluster = self.cluster
        for row, there in enumerate(cluster.present):
            if self.stood[row] and not there:
                self.unseen.append((cluster.now_s + cluster.noise.delay_s, BROKERS[row]))
        self.stood = list(cluster.present)
        self.unseen += [(one.seen_s, one) for one in published]
        due = [one for one in self.unseen if one[0] <= cluster.now_s]
        self.unseen = [one for one in self.unseen if one[0] > cluster.now_s]
        for seen_s, news in sorted(due, key=lambda one: one[0]):
            if isinstance(news, Reported):
                self.tracker.report(news.report(), seen_s)
            else:
                self.tracker.forget(news, seen_s)

    def view(self) -> ClusterView:
        cluster = self.cluster
        book = {
            BUNDLES[row]: BROKERS[owner] for row, owner in enumerate(cluster.owner) if owner >= 0
        }
        return self.tracker.view(cluster.now_s, in_flight={**book, **cluster.in_flight})


def assert_same(got: ClusterView, want: ClusterView) -> None:
    for name in ("names", "versions", "started_at_ms"):
        assert getattr(got.brokers, name) == getattr(want.brokers, name)
    for name in ("draining", "persistent", "non_persistent", "topics", "seen_s", "limit", "usage"):
        np.testing.assert_array_equal(getattr(got.brokers, name), getattr(want.brokers, name))
    # Sums over a broker's bundles may be added up in another order.
    for name in ("traffic", "long_msgs_per_s", "preallocated_msgs_per_s", "load_ema", "bytes_ema"):
        np.testing.assert_allclose(
            getattr(got.brokers, name), getattr(want.brokers, name), rtol=1e-12
        )
    assert list(got.bundles.names) == list(want.bundles.names)
    for name in ("short", "long", "known", "system", "topics"):
        np.testing.assert_array_equal(getattr(got.bundles, name), getattr(want.bundles, name))
    np.testing.assert_array_equal(got.owned.starts, want.owned.starts)
    np.testing.assert_array_equal(got.owned.rows, want.owned.rows)
    assert got.moved == want.moved
    assert got.top_bundles == want.top_bundles
    assert got.membership_changed_s == want.membership_changed_s
    assert got.departures_s == want.departures_s
    assert got.now_s == want.now_s


world_events = st.lists(
    st.one_of(
        st.tuples(st.just("tick"), st.none()),
        st.tuples(st.just("order"), st.tuples(st.integers(0, 19), st.integers(0, 3))),
        st.tuples(st.just("arrive"), st.none()),
        st.tuples(st.just("rates"), st.floats(0.5, 2.0)),
        st.tuples(st.just("drain"), st.integers(0, 3)),
        st.tuples(st.just("flap"), st.integers(0, 3)),
        st.tuples(st.just("restart"), st.integers(0, 3)),
        st.tuples(st.just("silence"), st.integers(0, 3)),
        st.tuples(st.just("look"), st.none()),
    ),
    min_size=5,
    max_size=40,
)


def happen(cluster: Cluster, kind: str, what: object) -> None:
    if kind == "order" and isinstance(what, tuple):
        cluster.in_flight[BUNDLES[what[0]]] = BROKERS[what[1]]
    elif kind == "arrive":
        cluster.arrive()
    elif kind == "rates" and isinstance(what, float):
        cluster.rates = cluster.rates * what
    elif isinstance(what, int):
        if kind == "drain":
            cluster.draining[what] = not cluster.draining[what]
        elif kind == "flap":
            cluster.present[what] = not cluster.present[what]
        elif kind == "restart":
            cluster.started_at_ms[what] += 1
        else:
            cluster.agents.silence([what], cluster.now_s + 45.0)


@pytest.mark.parametrize("mode", ["safe", "parity"])
@settings(max_examples=40)
@given(story=world_events)
def test_the_view_is_that_of_a_live_leader(mode: str, story: list[tuple[str, object]]) -> None:
    cluster = Cluster(noise=NOISE, planner=planner(mode=mode))
    reference = Reference(cluster)
    for kind, what in [*story, ("look", None)]:
        if kind == "tick":
            cluster.leader.tick(cluster.now_s)
            reference.tracker.sample()
        elif kind == "look":
            cluster.leader.round(cluster.now_s, cluster.in_flight)
            assert_same(cluster.leader.view, reference.view())
            assert cluster.leader.tracker.averages() == reference.tracker.averages()
        else:
            happen(cluster, kind, what)
            reference.step(cluster.step())


def test_a_bundle_that_has_arrived_is_on_its_way_until_its_broker_reports_it() -> None:
    cluster = settled()
    cluster.agents.silence([0, 1, 2, 3], cluster.now_s + 25.0)
    cluster.in_flight = {BUNDLES[0]: BROKERS[3]}
    cluster.arrive()
    seen = []
    for _ in range(3):
        cluster.step()
        cluster.leader.round(cluster.now_s, {})
        seen.append(dict(cluster.leader.view.moved))
    assert seen == [{BUNDLES[0]: BROKERS[3]}, {BUNDLES[0]: BROKERS[3]}, {}]


def test_what_leaves_a_draining_broker_goes_to_one_that_does_not_drain() -> None:
    cluster = settled()
    cluster.draining = [True, False, True, False]
    cluster.step()
    leaving = {BUNDLES[row]: BROKERS[0] for row in range(0, 20, 4)}
    moves = cluster.leader.place(cluster.now_s, leaving, {}, leaving, Cause.DRAINING)
    assert {move.bundle: move.source for move in moves} == leaving
    assert {move.target for move in moves} <= {BROKERS[1], BROKERS[3]}
    assert {move.cause for move in moves} == {Cause.DRAINING}


def test_what_nobody_can_take_stays() -> None:
    cluster = settled()
    cluster.draining = [True] * 4
    cluster.step()
    assert cluster.leader.place(cluster.now_s, [BUNDLES[0]], {}) == []


@pytest.mark.parametrize("shedder", ["threshold", "overload", "uniform", "avg", "transfer"])
def test_the_memory_of_a_strategy_goes_from_round_to_round(shedder: str) -> None:
    cluster = settled(planner=planner(shedder), owner=[0] * 20)
    moves = 0
    for _ in range(20):
        for _ in range(6):
            cluster.arrive()
            cluster.step()
            cluster.leader.tick(cluster.now_s)
        plan = cluster.leader.round(cluster.now_s, cluster.in_flight)
        cluster.in_flight = {move.bundle: move.target for move in plan.moves}
        moves += len(plan.moves)
        assert cluster.leader.playback.memory is plan.memory
    assert moves > 0
    assert len(cluster.leader.playback.memory.moved_at_s) == moves


LEAVING = (broker("b-1"),)


def emptying(step_s: float = 5.0, base_s: float = 4.0) -> tuple[Stepped, Emptying]:
    """Return a world in which b-1 has six bundles, b-2 six others, and who empties b-1."""
    load = {"bundles": 12, "topics": 12, "over": "bundles"}
    times = AT_ONCE | {"order_s": base_s / 4, "base_s": base_s}
    stepped = Stepped(scenario(step_s=step_s, load=load, hand_over=times))
    return stepped, Emptying(world=stepped.world, at_a_time=2, step_s=step_s)


@pytest.mark.parametrize(
    ("step_s", "base_s", "leave"), [(5.0, 4.0, 2), (10.0, 4.0, 4), (60.0, 4.0, 6), (1.0, 0.0, 6)]
)
def test_as_many_as_get_done_leave_in_a_step(step_s: float, base_s: float, leave: int) -> None:
    _, empties = emptying(step_s, base_s)
    assert len(empties.due(LEAVING, 0.0)) == leave


def test_what_is_under_way_already_counts() -> None:
    stepped, empties = emptying()
    stepped.order(stepped.world.bundles[0], "b-2")
    assert list(empties.due(LEAVING, 0.0)) == [stepped.world.bundles[2]]
    stepped.order(stepped.world.bundles[2], "b-2")
    assert empties.due(LEAVING, 0.0) == {}
    stepped.until(5.0)
    assert len(empties.due(LEAVING, 5.0)) == 2


def test_the_bundles_of_brokers_that_vanished_together_wait_for_their_return() -> None:
    cluster = settled()
    lost = cluster.lose(1, 2)
    cluster.step()
    assert cluster.leader.place(cluster.now_s, lost, {}) == []
    plan = cluster.leader.round(cluster.now_s + 1.0, {}, lost)
    assert plan.moves == ()
    assert len(cluster.leader.place(cluster.now_s + 9.9, [*lost, BUNDLES[0]], {})) == 1
    assert len(cluster.leader.place(cluster.now_s + 10.0, lost, {})) == len(lost)


@pytest.mark.parametrize(("session_timeout_s", "placed_s"), [(5.0, 125.0), (30.0, 160.0)])
def test_it_goes_by_the_scenarios_sessions(session_timeout_s: float, placed_s: float) -> None:
    # The second broker is missed 20 s after the first: with the longer session its bundles wait
    # another 10 s for it to come back.
    crashes = [
        {"kind": "crash", "at_s": at_s, "brokers": [name]}
        for at_s, name in ((100.0, "b-1"), (120.0, "b-2"))
    ]
    played = scenario(
        brokers=4,
        duration_s=200.0,
        load={"bundles": 8, "topics": 8, "over": "bundles"},
        events=crashes,
        hand_over={"session_timeout_s": session_timeout_s},
        noise=EXACT,
    )
    assert max(move.at_s for move in run(played).moves) == placed_s
