"""Which bundles leave a draining broker, and when."""

from simulated_worlds import Stepped, broker, scenario

from loadmanager.simulator.leader import Emptying

SLOW = {"order_s": 1.0, "base_s": 4.0, "per_topic_s": 0.0}
LEAVING = (broker("b-1"),)


def emptying(step_s: float = 5.0, at_a_time: int = 2) -> tuple[Stepped, Emptying]:
    """Return a world in which b-1 has six bundles, b-2 six others, and who empties b-1."""
    load = {"bundles": 12, "topics": 12, "over": "bundles"}
    stepped = Stepped(scenario(step_s=step_s, load=load, hand_over=SLOW))
    return stepped, Emptying(world=stepped.world, at_a_time=at_a_time, step_s=step_s)


def test_nothing_leaves_where_nobody_drains() -> None:
    _, empties = emptying()
    assert empties.due((), 0.0) == {}


def test_a_few_leave_at_a_time() -> None:
    stepped, empties = emptying()
    bundles = stepped.world.bundles
    assert empties.due(LEAVING, 0.0) == dict.fromkeys((bundles[0], bundles[2]), broker("b-1"))


def test_as_many_as_get_done_one_after_the_other_leave_in_a_long_step() -> None:
    _, empties = emptying(step_s=10.0)
    assert len(empties.due(LEAVING, 0.0)) == 4
    _, empties = emptying(step_s=60.0)
    assert len(empties.due(LEAVING, 0.0)) == 6


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


def test_another_drain_begins_anew() -> None:
    stepped, empties = emptying()
    empties.refused([stepped.world.bundles[0]], 10.0)
    empties.due((), 10.5)
    assert stepped.world.bundles[0] in empties.due(LEAVING, 11.0)


def test_hand_overs_that_take_no_time_empty_a_broker_in_one_step() -> None:
    at_once = {"order_s": 0.0, "base_s": 0.0, "per_topic_s": 0.0}
    stepped = Stepped(scenario(hand_over=at_once, load={"bundles": 12, "topics": 12}))
    empties = Emptying(world=stepped.world, at_a_time=2, step_s=1.0)
    assert len(empties.due(LEAVING, 0.0)) == 6
