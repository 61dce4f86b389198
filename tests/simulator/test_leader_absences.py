"""Whose bundles a modelled leader keeps for a broker that vanished."""

from modelled_cluster import BROKERS, BUNDLES, settled


def test_the_bundles_of_one_broker_that_vanished_go_on_at_once() -> None:
    cluster = settled()
    lost = cluster.lose(1)
    cluster.step()
    moves = cluster.leader.place(cluster.now_s, lost, {})
    assert [move.bundle for move in moves] == lost
    assert BROKERS[1] not in {move.target for move in moves}


def test_the_bundles_of_brokers_that_vanished_together_wait_for_their_return() -> None:
    cluster = settled()
    lost = cluster.lose(1, 2)
    cluster.step()
    assert cluster.leader.place(cluster.now_s, lost, {}) == []
    plan = cluster.leader.round(cluster.now_s + 1.0, {}, lost)
    assert plan.moves == ()
    assert len(cluster.leader.place(cluster.now_s + 9.9, [*lost, BUNDLES[0]], {})) == 1
    assert len(cluster.leader.place(cluster.now_s + 10.0, lost, {})) == len(lost)


def test_brokers_that_came_back_are_waited_for_no_more_and_anew() -> None:
    cluster = settled()
    lost = cluster.lose(1, 2)
    cluster.step()
    assert cluster.leader.place(cluster.now_s, lost, {}) == []
    cluster.present = [True] * 4
    cluster.step()
    assert len(cluster.leader.place(cluster.now_s, lost, {})) == len(lost)
    for row, bundle in enumerate(BUNDLES):
        cluster.owner[row] = 1 if bundle in lost else cluster.owner[row]
    cluster.step()
    assert cluster.leader.place(cluster.now_s, [], {}) == []
    again = cluster.lose(1)
    cluster.step()
    assert len(cluster.leader.place(cluster.now_s, again, {})) == len(again)


def test_brokers_that_vanish_one_after_the_other_count_as_together() -> None:
    cluster = settled()
    first = cluster.lose(1)
    cluster.step()
    assert len(cluster.leader.place(cluster.now_s, first, {})) == len(first)
    for bundle in first:
        cluster.owner[BUNDLES.index(bundle)] = 0
    second = cluster.lose(2)
    cluster.step()
    assert cluster.leader.place(cluster.now_s, second, {}) == []
