"""The joint strategy as a whole: what it moves, what it leaves, and why."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from joint_cluster import Broker, Traffic, after, decided, open_limits, view
from small_view import bundle

from loadmanager.core.cluster import ClusterView
from loadmanager.core.filters import Filters
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.core.joint.ages import HALF_PRICE_S, Ages
from loadmanager.core.joint.deciding import learned_from
from loadmanager.core.joint.document import decode_joint, encode_joint
from loadmanager.core.joint.persistence import Persistence
from loadmanager.core.joint.restarts import TOGETHER_S, Restarts
from loadmanager.core.joint.standing import standing
from loadmanager.core.memory import Memory, RoundMemory
from loadmanager.core.placement import JointPlacement
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import Mode, PlannerSettings
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.scores import ResourceWeights
from loadmanager.core.shedding import JointShedder, MovePrice, Shed

SETTINGS = PlannerSettings(settle_s=0.0, moves_per_round=1000)


def planner(**given: object) -> Planner:
    settings = replace(SETTINGS, **given)  # type: ignore[arg-type]  # settings by name
    return Planner(shedder=JointShedder(), placement=JointPlacement(), settings=settings)


def rounds(
    brokers: dict[str, Broker], traffic: dict[int, Traffic] | None = None, count: int = 5
) -> tuple[dict[str, Broker], int]:
    """Return the brokers after some rounds a minute apart, and how many bundles moved."""
    memory, rng, moved = RoundMemory(), np.random.default_rng(1), 0
    for number in range(1, count + 1):
        seen = view(brokers, traffic, now_s=60.0 * number)
        plan = planner(cool_down_s=0.0).round(seen, memory, rng)
        brokers, memory = after(plan, brokers), plan.memory
        moved += len(plan.moves)
    return brokers, moved


def once(seen: ClusterView, shedder: JointShedder | None = None, **limits: object) -> Shed:
    return (shedder or JointShedder()).decide(seen, Memory(), open_limits(seen, **limits))


def counts(brokers: dict[str, Broker]) -> list[int]:
    return [len(one.bundles) for one in brokers.values()]


def split(*spans: range | tuple[int, ...], **given: Any) -> dict[str, Broker]:
    """Return brokers a, b, c ... that have these bundles each."""
    keys = (f"{letter}:1" for letter in "abcdefgh")
    return {key: Broker(bundles=span, **given) for key, span in zip(keys, spans, strict=False)}


def alike(count: int, msgs: float = 4000) -> dict[int, Traffic]:
    return dict.fromkeys(range(count), Traffic(msgs=msgs))


def reasons(shed: Shed) -> dict[str, Reason]:
    return {refusal.subject: refusal.reason for refusal in shed.refusals}


def crowded(**given: Any) -> dict[str, Broker]:
    return {**split(range(30), (), ()), "a:1": Broker(bundles=range(30), **given)}


def test_everything_on_one_broker_is_spread_over_all() -> None:
    found, moved = rounds(crowded(), alike(30))
    assert counts(found) == pytest.approx([10, 10, 10], abs=1)
    assert moved == 30 - counts(found)[0]


def test_a_cluster_that_is_even_is_left_alone_and_says_at_what_level() -> None:
    brokers = split(range(5), range(5, 10))
    shed = once(view(brokers, alike(10, 8000)))
    assert shed.offers == ()
    assert reasons(shed) == dict.fromkeys(brokers, Reason.WITHIN_THRESHOLD)
    assert "of the level" in shed.refusals[0].detail


def test_opposite_skews_are_evened_in_each_resource() -> None:
    # a:1 has many small messages, b:1 few large ones: CPU is short on one, network on the other.
    small, large = Traffic(msgs=10_000, size=10), Traffic(msgs=50, size=100_000)
    traffic = {**dict.fromkeys(range(10), small), **dict.fromkeys(range(10, 20), large)}
    found, _ = rounds(split(range(10), range(10, 20)), traffic, count=8)
    for one in found.values():
        assert sum(k < 10 for k in one.bundles) == pytest.approx(5, abs=1)
        assert sum(k >= 10 for k in one.bundles) == pytest.approx(5, abs=1)


def test_a_slower_broker_and_a_busy_one_get_less() -> None:
    brokers = {
        "fast:1": Broker(bundles=range(10), network_kbit=1e7),
        "slow:1": Broker(bundles=range(10, 20), network_kbit=1e7, speed=2.0),
        "busy:1": Broker(bundles=range(20, 30), network_kbit=1e7, background=0.4),
        "large:1": Broker(bundles=range(30, 40), network_kbit=1e7, cores=16),
    }
    traffic = alike(40, 6000)
    found, _ = rounds(brokers, traffic, count=8)
    fast, slow, busy, large = counts(found)
    assert slow < fast < large
    assert busy < fast


@pytest.mark.parametrize(
    ("brokers", "msgs"),
    [
        pytest.param(split(range(12), (), background=0.01), 10, id="a quiet cluster"),
        pytest.param(split(range(12), (), known=False), 1000, id="capacities nobody knows"),
    ],
)
def test_rates_balance(brokers: dict[str, Broker], msgs: int) -> None:
    found, _ = rounds(brokers, alike(12, msgs))
    assert counts(found) == pytest.approx([6, 6], abs=1)


def test_nothing_moves_where_nothing_has_traffic() -> None:
    assert once(view(split(range(5), ()), alike(5, 0))).offers == ()
    assert once(view(split(()))).offers == ()


def busy_now_and_then(busy: Callable[[int], float], minutes: int) -> int:
    """Return how many bundles move where another process uses so much of one broker."""
    calm = split(range(10), range(10, 20), range(20, 30))
    views = (
        view(
            {**calm, "a:1": replace(calm["a:1"], background=busy(number))},
            alike(30, 6000),
            now_s=60.0 * number,
        )
        for number in range(1, minutes + 1)
    )
    price = JointShedder(move_price=MovePrice.EVEN)
    return sum(len(shed.offers) for shed in decided(views, price))


def test_another_process_counts_once_it_lasted_and_at_once_where_it_is_urgent() -> None:
    def moved(background: float, minutes: int) -> int:
        return busy_now_and_then(lambda number: background if number >= 8 else 0.0, 7 + minutes)

    assert moved(0.3, 4) == 0
    assert moved(0.3, 5) > 0
    assert moved(0.65, 1) > 0


ON_ONE = (range(16), (), ())
# Traffic that was there before usage was known: on two, and the third is new; or on all.
ON_TWO = (range(11), range(11, 16), ())
ON_ALL = (range(3), range(3, 8), range(8, 16))


@pytest.mark.parametrize(
    ("common", "begins"),
    [(used, begins) for used in (0.05, 0.3, 0.5, 0.8) for begins in (ON_ONE, ON_TWO, ON_ALL)]
    + [(0.95, ON_ONE)],
)
def test_where_other_work_hides_what_traffic_uses_rates_are_evened_out(
    common: float, begins: tuple[range | tuple[int, ...], ...]
) -> None:
    """Brokers of one host report the use of all that runs there, whichever has the traffic."""
    fullest = []
    for seed in range(1, 5):
        rng = np.random.default_rng(seed)
        brokers, little = (split(*begins), {k: Traffic(msgs=40.0, size=100.0) for k in range(16)})
        memory = RoundMemory()
        for number in range(1, 11):
            varied = np.clip(common + rng.normal(0.0, 0.06, 3), 0.0, 0.99)
            brokers = {
                key: replace(one, background=used)
                for (key, one), used in zip(brokers.items(), varied.tolist(), strict=True)
            }
            plan = planner(cool_down_s=0.0).round(
                view(brokers, little, now_s=60.0 * number), memory, np.random.default_rng(1)
            )
            brokers, memory = after(plan, brokers), plan.memory
        fullest.append(max(counts(brokers)))
    # What varies may be above 0.9 for two reports, and then has bundles leave.
    assert sorted(fullest)[-2] <= 6
    assert max(fullest) <= 8


def test_a_process_that_comes_and_goes_is_not_followed() -> None:
    assert busy_now_and_then(lambda number: 0.3 if number % 6 >= 3 else 0.0, 60) == 0


@pytest.mark.parametrize(
    ("price", "least", "most"), [("even", 3, 9), ("normal", 2, 8), ("quiet", 0, 2)]
)
def test_a_dearer_price_moves_less(price: str, least: int, most: int) -> None:
    seen = view(split(range(12), range(12, 21), range(21, 30)), alike(30))
    shed = once(seen, JointShedder(move_price=MovePrice(price)))
    quiet = once(seen, JointShedder(move_price=MovePrice.QUIET))
    assert len(quiet.offers) <= len(shed.offers) <= most
    assert least <= len(shed.offers) or price != "even" or len(shed.offers) >= len(quiet.offers)


def test_two_large_bundles_are_exchanged_where_no_single_move_helps() -> None:
    # 9 and 9 against 6 and 6: moving any one makes it worse, exchanging a 9 for a 6 evens it.
    traffic = {k: Traffic(msgs=18_000 if k < 2 else 9000) for k in range(4)}
    shed = once(view(split((0, 1), (2, 3)), traffic), JointShedder(move_price=MovePrice.EVEN))
    assert {(one.source, one.target) for one in shed.offers} == {("a:1", "b:1"), ("b:1", "a:1")}
    assert {one.cause for one in shed.offers} == {Cause.SWAP}


def test_where_no_bundle_fits_the_broker_and_the_bundle_say_why() -> None:
    shed = once(view(split((0, 1), (2,)), alike(3, 20_000)))
    assert shed.offers == ()
    told = {refusal.subject: refusal for refusal in shed.refusals}
    assert told["a:1"].reason is Reason.NO_BUNDLE_FITS
    assert "costs" in told["a:1"].detail
    assert Reason.NO_IMPROVEMENT in {told[one].reason for one in told if one != "a:1"}


def test_no_broker_is_evened_out_below_what_the_heaviest_bundle_takes_alone() -> None:
    traffic = {0: Traffic(msgs=40_000), **dict.fromkeys(range(1, 16), Traffic(msgs=4000))}
    brokers = split((0,), range(1, 5), range(5, 8), range(8, 16))
    _, moved = rounds(brokers, traffic)
    assert moved == 0
    without = {key: one for key, one in brokers.items() if key != "a:1"}
    _, moved = rounds(without, traffic)
    assert moved > 0


def test_a_round_moves_what_is_misplaced_and_no_more_moves_than_allowed() -> None:
    seen = view(crowded(), alike(30))
    assert 19 <= len(once(seen).offers) <= 21  # Of thirty, twenty are misplaced.
    few = once(seen, moves=3)
    assert len(few.offers) == 3
    assert reasons(few)["a:1"] is Reason.ROUND_BUDGET
    assert once(seen, moves=0).offers == ()


def test_a_round_moves_all_that_is_misplaced_where_that_is_less() -> None:
    brokers = split(range(6), range(6, 12))
    brokers |= {f"c-{k}:1": Broker(bundles=[k]) for k in range(12, 20)}
    offers = once(view(brokers, alike(20, 20_000))).offers
    assert sorted(one.source for one in offers) == ["a:1"] * 4 + ["b:1"] * 4
    assert len({one.target for one in offers}) == 8


def test_nobody_gives_or_takes_who_may_not() -> None:
    seen = view(crowded(), alike(30))
    every = np.ones(3, dtype=np.bool_)
    none = ~every
    assert once(seen, gives=none, takes=none).offers == ()
    assert once(seen, gives=none, takes=none).refusals == ()
    shed = once(seen, takes=np.array([True, False, True]))
    assert {one.target for one in shed.offers} == {"c:1"}
    stuck = once(seen, takes=none)
    assert stuck.offers == ()
    assert reasons(stuck)["a:1"] is Reason.NO_CANDIDATE
    fixed = once(seen, movable=np.zeros(30, dtype=np.bool_))
    assert reasons(fixed)["a:1"] is Reason.NO_CANDIDATE


def test_overload_is_told_apart_from_imbalance() -> None:
    hot = once(view(crowded(), alike(30, 6000)))
    mild = once(view(crowded(), alike(30, 2000)))
    assert {one.cause for one in hot.offers} == {Cause.OVERLOADED}
    assert {one.cause for one in mild.offers} == {Cause.IMBALANCE}


def test_without_a_planner_it_sheds_what_the_view_allows() -> None:
    brokers = {**crowded(), "d:1": Broker(bundles=(), changed={"draining": True})}
    seen = view(brokers, alike(30))
    targets = {one.target for one in JointShedder().shed(seen, Memory()).offers}
    assert targets == {"b:1", "c:1"}


def test_isolation_holds_and_what_was_chosen_before_counts() -> None:
    policy = IsolationPolicy(namespaces=("t/n",), primary=("a", "b"))
    brokers = {key.replace(":1", ":80"): one for key, one in crowded().items()}
    seen = view(brokers, alike(30), policies=Policies(isolation={"p": policy}))
    plan = planner().round(seen, RoundMemory(), np.random.default_rng(1))
    assert plan.moves
    assert {move.target for move in plan.moves} == {"b:80"}
    nowhere = replace(policy, primary=("a",))
    alone = replace(seen, policies=Policies(isolation={"p": nowhere}))
    plan = planner().round(alone, RoundMemory(), np.random.default_rng(1))
    assert plan.moves == ()
    assert Reason.NO_CANDIDATE in {one.reason for one in plan.refusals}


def test_namespaces_of_an_anti_affinity_group_stay_apart() -> None:
    namespaces = {k: f"t/n{k}" for k in range(6)}
    group = dict.fromkeys((Namespace(one) for one in namespaces.values()), "g")
    seen = view(
        split(range(6), (), ()),
        alike(6, 12_000),
        namespaces=namespaces,
        policies=Policies(anti_affinity=group),
    )
    plan = planner().round(seen, RoundMemory(), np.random.default_rng(1))
    targets = [move.target for move in plan.moves]
    assert abs(targets.count(BrokerId("b:1")) - targets.count(BrokerId("c:1"))) <= 1
    assert targets


def test_swaps_keep_to_policies_too() -> None:
    traffic = {k: Traffic(msgs=18_000 if k < 2 else 9000) for k in range(4)}
    namespaces = {0: "t/a", 1: "t/a", 2: "t/n", 3: "t/n"}
    policies = Policies(isolation={"p": IsolationPolicy(namespaces=("t/a",), primary=("a",))})
    seen = view(split((0, 1), (2, 3)), traffic, namespaces=namespaces, policies=policies)
    plan = planner().round(seen, RoundMemory(), np.random.default_rng(1))
    assert plan.moves == ()


def test_excluded_resting_stale_and_draining_are_left_alone() -> None:
    traffic = alike(30)
    rng = np.random.default_rng(1)
    seen = view(crowded(), traffic)
    excluded = planner(excluded_namespaces=frozenset({Namespace("t/n"), Namespace("t/none")}))
    assert excluded.round(seen, RoundMemory(), rng).moves == ()
    resting = RoundMemory(moved_at_s={bundle(k): 30.0 for k in range(30)})
    assert planner().round(seen, resting, rng).moves == ()
    silent = crowded(changed={"seen_s": -500.0})
    assert planner().round(view(silent, traffic), RoundMemory(), rng).moves == ()
    brokers = {**crowded(), "b:1": Broker(bundles=(), changed={"draining": True})}
    plan = planner().round(view(brokers, traffic), RoundMemory(), rng, draining=False)
    assert {move.target for move in plan.moves} == {"c:1"}


def test_the_planner_bounds_the_round_and_the_hour() -> None:
    seen = view(crowded(), alike(30))
    rng = np.random.default_rng(1)
    assert len(planner(moves_per_round=2).round(seen, RoundMemory(), rng).moves) == 2
    lately = RoundMemory(moved_at_s={bundle(100 + k): 0.0 for k in range(5)})
    assert len(planner(moves_per_hour=8).round(seen, lately, rng).moves) == 3
    assert planner(moves_per_hour=2).round(seen, lately, rng).moves == ()
    parity = planner(moves_per_hour=2, mode=Mode.PARITY)
    assert len(parity.round(seen, lately, rng).moves) > 3


def test_a_round_is_due_early_while_a_broker_stands_out_and_nothing_is_under_way() -> None:
    def due(seen: ClusterView, by: Planner) -> bool:
        return by.due_early(seen, RoundMemory())

    busy, even = view(crowded(), alike(30)), view(split(range(10), range(10, 20), range(20, 30)))
    assert due(busy, planner())
    assert not due(even, planner())
    assert not due(replace(busy, moved={bundle(0): BrokerId("b:1")}), planner())
    assert not due(busy, planner(max_stale_fraction=0.34, settle_s=600.0))
    assert not due(busy, Planner(settings=SETTINGS))  # It counts rounds.
    draining = {"draining": True}
    assert not due(view({"a:1": Broker(bundles=range(30), changed=draining)}), planner())


def test_a_broker_that_reports_more_than_is_predicted_for_long_is_named() -> None:
    even, memory, found = split(range(10), range(10, 20), range(20, 30)), Memory(), []
    for minute in range(1, 9):
        brokers = even if minute == 1 else {**even, "a:1": replace(even["a:1"], background=0.4)}
        seen = view(brokers, alike(30, 8000), now_s=60.0 * minute)
        if memory.joint is not None:  # No later report is believed.
            figures = replace(memory.joint.learned.brokers, seen_s=np.full(3, np.inf))
            learned = replace(memory.joint.learned, brokers=figures)
            memory = replace(memory, joint=replace(memory.joint, learned=learned))
        shed = JointShedder().decide(seen, memory, open_limits(seen))
        memory = shed.memory
        found.append(reasons(shed)["a:1"])
    assert found[:7] == [Reason.WITHIN_THRESHOLD] * 7
    assert found[7] == Reason.CONTRADICTED


def test_a_round_that_may_not_move_learns_all_the_same() -> None:
    seen = view(crowded(), alike(30))
    plan = planner(shedding=False).round(seen, RoundMemory(), np.random.default_rng(1))
    assert plan.moves == ()
    assert plan.memory.shedder.joint is not None


def test_bundles_under_way_count_on_their_targets() -> None:
    going = {bundle(k): BrokerId("b:1") for k in range(10)}
    seen = view(split(range(20), ()), alike(20), in_flight={**going, bundle(99): BrokerId("b:1")})
    memory = JointShedder().watch(seen, Memory())
    assert JointShedder().decide(seen, memory, open_limits(seen)).offers == ()
    plan = planner().round(seen, RoundMemory(shedder=memory), np.random.default_rng(1))
    assert plan.moves == ()


def test_heap_counts_while_it_can_be_predicted() -> None:
    def resources(saw_tooth: float) -> tuple[str, ...]:
        memory, rng = Memory(), np.random.default_rng(5)
        shedder = JointShedder()
        for number in range(1, 8):
            brokers = {
                key: replace(
                    one,
                    memory_mib=1000.0,
                    memory_used=500.0 + saw_tooth * float(rng.random()),
                )
                for key, one in split(range(10), range(10, 20), range(20, 30)).items()
            }
            seen = view(brokers, alike(30, 1000), now_s=60.0 * number)
            memory = shedder.watch(seen, memory)
        assert memory.joint is not None
        limits = open_limits(seen)
        return standing(seen, memory.joint, ResourceWeights(memory=1.0), limits.gives).resources

    assert "memory" in resources(0.0)
    assert "memory" not in resources(400.0)
    seen = view(crowded(), alike(30))
    assert len(once(seen, JointShedder(heap=False)).offers) == len(once(seen).offers)


def test_of_many_brokers_and_bundles_the_best_are_looked_at() -> None:
    many = {f"b:{k}": Broker(bundles=range(k * 2, k * 2 + 2)) for k in range(2, 40)}
    brokers = {"b:1": Broker(bundles=range(100, 112)), **many}
    shed = once(view(brokers, alike(200)))
    assert shed.offers
    assert {one.source for one in shed.offers} == {"b:1"}
    few = {k: Traffic(msgs=700 if k < 60 else 975) for k in range(140)}
    stuck = split(range(60), range(60, 100), range(100, 140))
    shed = once(view(stuck, few), JointShedder(move_price=MovePrice.QUIET, tolerance=1.0))
    assert reasons(shed)["a:1"] is Reason.NO_BUNDLE_FITS


def test_filters_know_whether_bundles_differ() -> None:
    seen = view({"a:1": Broker(bundles=(1,))})
    assert not Filters().tells_apart(seen)
    assert Filters(even_bundles=True).tells_apart(seen)


A, B = BrokerId("a:1"), BrokerId("b:1")


def stood(*over: tuple[float, float]) -> Ages:
    """Return the ages of two brokers that stood so far over the level, a minute apart."""
    ages = Ages()
    for number, each in enumerate(over, 1):
        ages = ages.after(60.0 * number, (A, B), np.array(each))
    return ages


def test_an_imbalance_grows_older_while_it_lasts_and_ends_where_the_broker_is_even() -> None:
    assert stood((0.1, 0.0)).age_s.tolist() == [0.0, 0.0]
    assert stood((0.1, 0.0), (0.1, 0.2)).age_s.tolist() == [60.0, 0.0]
    assert stood((0.2, 0.1), (0.1, 0.1), (0.05, 0.1)).age_s.tolist() == [120.0, 120.0]
    assert stood((0.1, 0.1), (0.0, 0.1), (0.1, 0.1)).age_s.tolist() == [0.0, 120.0]


def test_what_is_added_to_an_imbalance_makes_it_younger() -> None:
    old = stood(*[(0.1, 0.1)] * 11)
    assert old.age_s.tolist() == [600.0, 600.0]
    grown = old.after(720.0, (A, B), np.array([0.4, 0.11]))
    assert grown.age_s == pytest.approx([165.0, 600.0])


@pytest.mark.parametrize(("mean_s", "least_s", "most_s"), [(0.0, 0.0, 60.0), (60.0, 120.0, 600.0)])
def test_noise_begins_no_imbalance_anew(mean_s: float, least_s: float, most_s: float) -> None:
    rng, ages = np.random.default_rng(5), Ages()
    for number in range(1, 61):
        over = np.maximum(0.1 + rng.normal(0.0, 0.05, 2), 0.0)
        ages = ages.after(10.0 * number, (A, B), over, mean_s)
        again = ages.after(10.0 * number, (A, B), over, mean_s)
        assert again.age_s == pytest.approx(ages.age_s)
    assert ((ages.age_s >= least_s) & (ages.age_s <= most_s)).all()


def test_brokers_that_come_begin_anew_and_others_keep_their_ages() -> None:
    former = stood((0.1, 0.2), (0.1, 0.2))
    found = former.after(180.0, (BrokerId("c:1"), B), np.array([0.1, 0.2]))
    assert found.age_s.tolist() == [0.0, 120.0]


def test_the_price_falls_with_the_age_of_the_owners_imbalance() -> None:
    ages = replace(stood((0.1, 0.1)), age_s=np.array([HALF_PRICE_S, 0.0]))
    found = ages.prices(2.0, np.array([1.0, 1.0, 3.0]), np.array([0, 1, 0]))
    assert found.tolist() == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("turnover", "price", "moves"), [(0.0, 0.35, 1), (0.1, 4.0, 0)])
def test_where_traffic_changes_anyway_a_move_has_to_bring_more(
    turnover: float, price: float, moves: int
) -> None:
    brokers = {"a:1": Broker(bundles=range(30)), "b:1": Broker(bundles=range(30, 60))}
    seen = view(brokers, {k: Traffic(msgs=2200.0 if k < 30 else 2000.0) for k in range(60)})
    persistence = Persistence(turnover=turnover)
    assert persistence.price(2.0) == price
    memory = Memory(joint=replace(learned_from(seen, None), persistence=persistence))
    assert len(JointShedder().shed(seen, memory).offers) == moves
    assert JointShedder(tolerance=1.05).shed(seen, memory).offers == ()


def test_what_takes_turns_between_brokers_is_learned_and_what_begins_is_not() -> None:
    rows, even = [bundle(k) for k in range(10)], np.full(10, 0.1)
    apart = np.repeat(np.arange(2), 5)
    mixed = np.append(np.arange(9) % 2, -1)  # The last one has no owner.
    steady = turning = begins = within = Persistence()
    for number in range(120):
        now_s, high = 10.0 * number, (number // 30) % 2 == 0
        turns = even + np.where(np.arange(10) < 5, 0.02, -0.02) * (1.0 if high else -1.0)
        steady = steady.after(now_s, rows, even, even, owner=apart)
        turning = turning.after(now_s, rows, turns, even, owner=apart)
        within = within.after(now_s, rows, turns, even, owner=mixed)
        # Topics that appear within the first ten seconds say nothing of what lasts.
        begins = begins.after(now_s, rows, even if number else turns, even, owner=apart)
    assert steady.turnover == begins.turnover < 0.005
    assert turning.turnover > 0.03
    assert steady.turnover < within.turnover < 0.4 * turning.turnover
    assert (
        turning.after(1300.0, rows, even, even, owner=apart, others_changed=0.4).turnover
        > turning.turnover + 0.01
    )


NAMES = tuple(BrokerId(f"{key}:1") for key in "abcd")


def seen(*lives: int, msgs: float = 6000.0, now_s: float = 60.0) -> ClusterView:
    """Return brokers that began these lives, the last of which has nothing yet."""
    brokers: dict[str, Broker] = {
        name: Broker(
            bundles=range(k * 8, k * 8 + (8 if k < len(NAMES) - 1 else 0)),
            changed={"started_at_ms": life},
        )
        for k, (name, life) in enumerate(zip(NAMES, lives, strict=True))
    }
    return view(brokers, dict.fromkeys(range(24), Traffic(msgs=msgs)), now_s=now_s)


def restarted(*times: tuple[float, str], until: float) -> Restarts:
    """Return what is known of brokers that were back at these times, by the minute."""
    found, lives = Restarts(), dict.fromkeys(NAMES, 0)
    for minute in range(int(until // 60) + 1):
        now_s = 60.0 * minute
        back = {BrokerId(f"{key}:1") for at_s, key in times if at_s == now_s}
        gone = {BrokerId(f"{key}:1") for at_s, key in times if at_s == now_s + 60.0}
        lives |= dict.fromkeys(back, minute)
        there = {name: life for name, life in lives.items() if name not in gone}
        found = found.after(now_s, tuple(there), tuple(there.values()))
    return found


@pytest.mark.parametrize(
    ("times", "until", "under_way"),
    [
        pytest.param([(300, "a")], 360, False, id="one"),
        pytest.param([(300, "a"), (600, "b")], 600, True, id="two"),
        pytest.param([(300, "a"), (600, "b")], 1020, True, id="the next is due"),
        pytest.param([(300, "a"), (600, "b")], 1080, False, id="the next never came"),
        pytest.param([(300, "a"), (600, "b"), (900, "c"), (1200, "d")], 1200, False, id="all"),
        pytest.param([(300, "a"), (360 + TOGETHER_S, "b")], 1020, False, id="far apart"),
        pytest.param([(300, "a"), (600, "b"), (900, "a")], 960, False, id="one fails again"),
        pytest.param([(300, "a"), (300, "b")], 360, False, id="two at once"),
    ],
)
def test_restarts_that_follow_each_other_are_a_rolling_restart(
    times: Sequence[tuple[float, str]], until: float, under_way: bool
) -> None:
    assert restarted(*times, until=until).under_way(until) is under_way


def test_a_broker_that_was_away_for_long_is_a_new_one() -> None:
    known = Restarts().after(0.0, NAMES, (0,) * 4).after(60.0, NAMES[1:], (0,) * 3)
    assert known.after(120.0, NAMES, (1, 0, 0, 0)).back_s == {NAMES[0]: 120.0}
    late = known.after(60.0 + TOGETHER_S + 1.0, NAMES[1:], (0,) * 3)
    assert late.after(900.0, NAMES, (1, 0, 0, 0)).back_s == {}


def test_nothing_moves_for_balance_during_a_rolling_restart() -> None:
    before = [seen(0, 0, 0, 0, now_s=60.0), seen(0, 0, 1, 0, now_s=120.0)]
    shed = decided([*before, seen(0, 0, 1, 1, now_s=180.0)])[-1]
    assert not shed.offers
    assert {one.reason for one in shed.refusals} == {Reason.ROLLING_RESTART}
    assert "uses" in shed.refusals[0].detail
    assert decided([*before, seen(0, 0, 1, 0, now_s=180.0)])[-1].offers
    late = [seen(0, 0, 1, 1, now_s=now_s) for now_s in (180.0, 600.0)]
    assert decided([*before, *late])[-1].offers


def test_a_broker_that_is_nearly_full_gives_all_the_same() -> None:
    lives = [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1)]
    views = [seen(*one, msgs=20_000.0, now_s=60.0 * k) for k, one in enumerate(lives, start=1)]
    assert decided(views)[-1].offers


def test_the_next_leader_knows_of_it() -> None:
    lives = [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 1, 1)]
    memory = decided(seen(*one, now_s=60.0 * k) for k, one in enumerate(lives, 1))[-1].memory
    assert memory.joint is not None
    data = encode_joint(memory.joint)
    found = decode_joint("/m", data, 1000.0)
    assert found.restarts.back_s == {NAMES[2]: 940.0, NAMES[3]: 1000.0}
    assert found.restarts.under_way(1060.0)
    assert not found.restarts.under_way(1120.0)
