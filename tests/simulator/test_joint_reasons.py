"""In the shipped scenarios the joint strategy says why it leaves each broker and bundle alone."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pytest
from simulated_worlds import Told

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.explaining import Known, explain_broker, explain_bundle
from loadmanager.core.ids import BundleId
from loadmanager.core.plan import Reason, Refusal
from loadmanager.core.planner import Plan, Planner
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.scenario_files import load_scenario, shipped
from loadmanager.simulator.strategies import Strategy, planner_for

T = TypeVar("T")

JOINT = Strategy.parse("joint+joint", "safe")
SAID_WITHOUT_NUMBERS = {Reason.DRAINING, Reason.CLUSTER_IDLE}
ROUNDS = 3
ASKED = 3
LARGE = {"thousand", "cold-start"}
"""Where simulating takes long and nothing else happens to a broker or a bundle."""


class Asking(Told):
    """Asks after each round why some brokers and bundles are where they are; keeps poor answers."""

    def __init__(self, planner: Planner) -> None:
        super().__init__()
        self.planner = planner
        self.poor: list[str] = []

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        super().round_done(at_s, view, plan, averages)
        refusals: dict[str, list[Refusal]] = {}
        for one in plan.refusals:
            refusals.setdefault(one.subject, []).append(one)
        known = Known(view=view, planner=self.planner, memory=plan.memory, refusals=refusals)
        gave = {move.source for move in plan.moves}
        kept = [one for one in view.brokers.names if one not in gave]
        for broker in _some(kept):
            self._judge(broker, explain_broker(known, broker, ()).grounds)
        moved = {move.bundle for move in plan.moves}
        still = [one for one in view.bundles.names[: len(view.bundles.known)] if one not in moved]
        for bundle in _some(still):
            if view.listed_owner(bundle) is not None:
                told = explain_bundle(known, bundle, ())
                own = {bundle, ""}
                self._judge(bundle, tuple(one for one in told.grounds if one.subject in own))

    def _judge(self, subject: str, grounds: tuple[Refusal, ...]) -> None:
        numbered = [
            one
            for one in grounds
            if one.reason in SAID_WITHOUT_NUMBERS
            or re.search(r"\d", one.detail)
            or one.subject == ""
        ]
        if not numbered:
            self.poor.append(f"round {len(self.rounds)}: {subject}: {grounds}")


def _some(every: Sequence[T]) -> Sequence[T]:
    return every[:: max(len(every) // ASKED, 1)]


@pytest.mark.parametrize("name", sorted(shipped().keys() - LARGE))
def test_whatever_is_left_alone_has_a_reason_with_numbers(name: str) -> None:
    scenario = load_scenario(shipped()[name])
    lasts_s = scenario.warm_up_s + 60.0 * ROUNDS
    scenario = scenario.model_copy(update={"duration_s": min(lasts_s, scenario.duration_s)})
    planner = planner_for(scenario, JOINT)
    asking = Asking(planner)
    simulate(scenario, planner, seed=1, witness=asking)
    assert len(asking.rounds) >= 2
    assert not asking.poor, asking.poor[:5]
