"""What a modelled leader sees and decides, held to the tally of a live one."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from modelled_cluster import BROKERS, BUNDLES, NOISE, Cluster, planner, settled
from simulated_worlds import EXACT, run, scenario

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.simulator.agents import Reported


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
