import numpy as np
from small_view import bundle, make_view

from loadmanager.core.ids import BrokerId
from loadmanager.core.traffic_share import TrafficShare


def test_an_orphaned_bundle_costs_its_share_of_the_whole_cluster() -> None:
    view = make_view({"a:1": (0.5, {1: 100.0}), "b:1": (0.5, {2: 100.0})})
    assert TrafficShare().usage(view, bundle(1), None).tolist() == [400.0, 0.0, 0.0, 0.0, 0.0]


def test_a_bundle_never_measured_costs_as_much_as_the_mean() -> None:
    view = make_view({"a:1": (0.5, {1: 100.0, 2: 5.0}), "b:1": (0.5, {3: 100.0, 4: 7.0})})
    assert TrafficShare().usage(view, bundle(9), None).tolist() == [200.0, 0.0, 0.0, 0.0, 0.0]
    assert not TrafficShare().usage(make_view({"a:1": (0.0, {})}), bundle(9), None).any()


def test_the_smallest_traffic_there_is_overflows_no_share() -> None:
    view = make_view({"a:1": (0.5, {1: 1e15}), "b:1": (0.5, {2: 5e-324})})
    with np.errstate(all="raise"):
        usage = TrafficShare().usage(view, bundle(1), BrokerId("b:1"))
    assert usage.tolist() == [400.0, 0.0, 0.0, 0.0, 0.0]


def test_an_idle_broker_has_no_cost_to_share() -> None:
    view = make_view({"a:1": (0.5, {1: 0.0})})
    assert not TrafficShare().usage(view, bundle(1), BrokerId("a:1")).any()
