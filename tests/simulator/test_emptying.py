"""Which bundles leave a draining broker, and when."""

import pytest
from simulated_worlds import AT_ONCE, Stepped, broker, scenario

from loadmanager.simulator.leader import Emptying

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
def test_as_many_as_get_done_one_after_the_other_leave_in_a_step(
    step_s: float, base_s: float, leave: int
) -> None:
    _, empties = emptying(step_s, base_s)
    assert len(empties.due(LEAVING, 0.0)) == leave


def test_a_few_leave_at_a_time() -> None:
    stepped, empties = emptying()
    bundles = stepped.world.bundles
    assert empties.due((), 0.0) == {}  # Nobody drains.
    assert empties.due(LEAVING, 0.0) == dict.fromkeys((bundles[0], bundles[2]), broker("b-1"))


def test_what_is_under_way_already_counts() -> None:
    stepped, empties = emptying()
    stepped.order(stepped.world.bundles[0], "b-2")
    assert list(empties.due(LEAVING, 0.0)) == [stepped.world.bundles[2]]
    stepped.order(stepped.world.bundles[2], "b-2")
    assert empties.due(LEAVING, 0.0) == {}
    stepped.until(5.0)
    assert len(empties.due(LEAVING, 5.0)) == 2


def test_what_nobody_could_take_is_left_alone_for_a_moment() -> None:
    stepped, empties = emptying()
    bundles = stepped.world.bundles
    empties.refused([bundles[0]], 10.0)
    assert list(empties.due(LEAVING, 11.0)) == [bundles[2], bundles[4]]
    assert list(empties.due(LEAVING, 12.0)) == [bundles[0], bundles[2]]
    empties.refused([bundles[0]], 20.0)
    empties.due((), 20.5)  # Another drain begins anew.
    assert bundles[0] in empties.due(LEAVING, 21.0)
