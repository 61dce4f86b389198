"""The joint strategy where the pipeline's costs are published: it begins with them."""

from dataclasses import replace

import numpy as np
import pytest
from joint_cluster import CPU_PER_BYTE, CPU_PER_MSG, Broker, Traffic, view

from loadmanager.core.cost.document import ClassCosts, CostDocument, Quality, Term
from loadmanager.core.cost.traffic_share import TrafficShare
from loadmanager.core.joint.costs import JointCosts
from loadmanager.core.joint.deciding import learned_from
from loadmanager.core.joint.prior import published_costs
from loadmanager.core.joint.served import served_by
from loadmanager.core.joint.unit_costs import PublishedCosts
from loadmanager.core.memory import Memory
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.scores import BANDWIDTH_IN, CPU, MEMORY, FloatArray
from loadmanager.core.shedding import JointShedder

RATES = ("msgs_in_per_s", "msgs_out_per_s", "bytes_in_per_s", "bytes_out_per_s")
GOOD = Quality(mape=0.05, coverage=0.9, held_out_minutes=100, typical_error=0.05)


def class_costs(per_msg: float, per_byte: float, minutes: int = 1000) -> ClassCosts:
    """Return what messages and bytes cost of the CPU, known to a tenth."""
    values = dict(zip(RATES, (per_msg, per_msg, per_byte, per_byte), strict=True))
    return ClassCosts(
        resources={"cpu": {k: Term(v, 0.95 * v, 1.05 * v) for k, v in values.items()}},
        brokers=(),
        minutes=minutes,
        typical=dict.fromkeys(RATES, 1000.0),
    )


def document(**classes: ClassCosts) -> CostDocument:
    """Return a document whose classes are all good enough."""
    return CostDocument(
        cluster="c",
        made_at_ms=0,
        since_ms=0,
        until_ms=0,
        classes=classes,
        quality={name: {"cpu": GOOD} for name in classes},
    )


RIGHT = document(all=class_costs(CPU_PER_MSG, CPU_PER_BYTE))
SIZES = (10.0, 4000.0)


def cluster() -> tuple[dict[str, Broker], dict[int, Traffic]]:
    """Return two brokers with small messages and two with large ones, none with a background."""
    brokers = {f"{key}:1": Broker(bundles=[2 * k, 2 * k + 1]) for k, key in enumerate("abcd")}
    return brokers, {k: Traffic(msgs=9000.0, size=SIZES[k // 4]) for k in range(8)}


def errors(published: PublishedCosts | None) -> FloatArray:
    """Return how wrong the learned CPU of each broker's traffic is after the first reports."""
    seen = view(*cluster())
    learned = learned_from(seen, None, published).learned
    work = np.array([[2 * 9000.0] * 2 + [2 * 9000.0 * SIZES[b // 2]] * 2 for b in range(4)])
    costs = work @ learned.unit_costs[CPU, :4]
    return np.asarray(np.abs(costs / seen.brokers.usage[:, CPU] - 1.0))


def test_what_is_published_holds_from_the_first_report_on() -> None:
    assert errors(published_costs(RIGHT)).max() < 0.01
    assert errors(None).max() > 0.03


def test_before_any_traffic_the_costs_are_those_that_are_published() -> None:
    brokers, _ = cluster()
    idle = view(brokers, dict.fromkeys(range(8), Traffic(msgs=0.0)))
    state = learned_from(idle, None, published_costs(RIGHT))
    assert state.learned.unit_costs[CPU, 0] == pytest.approx(CPU_PER_MSG)
    assert not state.learned.unit_costs[BANDWIDTH_IN].any()


def test_what_is_published_and_wrong_is_unlearned() -> None:
    wrong = published_costs(document(all=class_costs(3 * CPU_PER_MSG, CPU_PER_BYTE)))
    brokers, _ = cluster()
    state, rng = None, np.random.default_rng(5)
    for minute in range(1, 31):
        traffic = {
            k: Traffic(msgs=rng.uniform(500, 9000), size=float(rng.choice(SIZES))) for k in range(8)
        }
        state = learned_from(view(brokers, traffic, now_s=60.0 * minute), state, wrong)
    assert state is not None
    seen = view(*cluster(), now_s=60.0 * 31)
    work, limit = served_by(seen.brokers), seen.brokers.limit
    # By speeds and costs together: which of the two is wrong, no report can tell.
    expected = state.learned.brokers.expected(state.learned.varying(work, limit))[:, CPU]
    assert expected * limit[:, CPU] == pytest.approx(seen.brokers.usage[:, CPU], rel=0.1)


def test_classes_count_by_their_minutes_and_their_distance_is_doubt() -> None:
    slow, fast = class_costs(0.4, 0.0, minutes=3000), class_costs(0.2, 0.0, minutes=1000)
    both = published_costs(document(slow=slow, fast=fast))
    assert both.mean[CPU, 0] == pytest.approx(0.35)
    assert both.sd[CPU, 0] > 0.08
    assert published_costs(document(slow=slow)).sd[CPU, 0] == pytest.approx(0.04 / 3.29)
    assert (both.known[CPU], both.known[MEMORY], both.mean[MEMORY].any()) == (True, False, False)


def test_a_class_that_is_not_sure_enough_does_not_count() -> None:
    poor = replace(RIGHT, quality={"all": {"cpu": replace(GOOD, mape=0.9)}})
    assert not published_costs(poor).known.any()
    assert errors(published_costs(poor)).tolist() == errors(None).tolist()


def test_a_planner_hands_the_strategy_what_it_decides_by_itself() -> None:
    planner = Planner(shedder=JointShedder()).costing(RIGHT)
    assert isinstance(planner.shedder, JointShedder)
    assert planner.shedder.published is not None
    seen = view(*cluster())
    memory = planner.shedder.watch(seen, Memory())
    assert memory.joint is not None
    assert memory.joint.learned.unit_costs[CPU, 0] == pytest.approx(CPU_PER_MSG, rel=0.01)
    assert isinstance(planner.shedder.costs(memory, TrafficShare()), JointCosts)


@pytest.mark.parametrize(
    "settings", [PlannerSettings(learned_costs=False), PlannerSettings(mode=Mode.PARITY)]
)
def test_what_is_published_does_not_count_where_settings_do_not_let_it(
    settings: PlannerSettings,
) -> None:
    planner = Planner(shedder=JointShedder(), settings=settings).costing(RIGHT)
    assert isinstance(planner.shedder, JointShedder)
    assert planner.shedder.published is None
    again = Planner(shedder=JointShedder()).costing(RIGHT).costing(None)
    assert isinstance(again.shedder, JointShedder)
    assert again.shedder.published is None
