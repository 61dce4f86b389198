"""Placing a bundle that has to leave the broker it is on."""

from collections.abc import Callable

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.planner import Planner
from loadmanager.core.round_memory import RoundMemory

MakeView = Callable[..., ClusterView]
NameBundle = Callable[..., BundleId]
A, B = BrokerId("a:1"), BrokerId("b:1")
IDLE_AND_HOT = {"a:1": (0.1, {1: 100.0}), "b:1": (0.9, dict.fromkeys(range(20, 29), 100.0))}


def test_a_bundle_does_not_go_to_the_broker_it_leaves_however_idle(
    make_view: MakeView, bundle: NameBundle
) -> None:
    view, rng = make_view(IDLE_AND_HOT, now_s=100.0), np.random.default_rng(1)
    assert Planner().place(view, bundle(1), RoundMemory(), rng).view.moved[bundle(1)] == A
    placed = Planner().place(view, bundle(1), RoundMemory(), rng, leaving=A, cause=Cause.REQUESTED)
    assert placed.move is not None
    assert (placed.move.source, placed.move.target) == (A, B)
    assert placed.move.cause is Cause.REQUESTED
    assert placed.view.brokers.traffic[view.row(A)].sum() < view.brokers.traffic[view.row(A)].sum()


def test_a_bundle_that_only_its_own_broker_could_take_stays_with_the_reason(
    make_view: MakeView, bundle: NameBundle
) -> None:
    view = make_view(IDLE_AND_HOT, {"b:1": {"draining": True}}, now_s=100.0)
    placed = Planner().place(
        view, bundle(1), RoundMemory(), np.random.default_rng(1), leaving=A, cause=Cause.DRAINING
    )
    assert placed.move is None
    (refusal,) = placed.refusals
    assert (refusal.reason, refusal.detail) == (Reason.NO_CANDIDATE, "1 draining")


def test_a_round_leaves_draining_brokers_to_the_drain_between(
    make_view: MakeView,
) -> None:
    view = make_view(IDLE_AND_HOT, {"a:1": {"draining": True}}, now_s=100.0)
    rng = np.random.default_rng(1)
    emptied = Planner().round(view, RoundMemory(), rng)
    assert [move.cause for move in emptied.moves] == [Cause.DRAINING]
    assert Planner().round(view, RoundMemory(), rng, draining=False).moves == ()
