"""Moves that policies require, and bundles without traffic that are spread by count."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loadmanager.core.columns import Listing
from loadmanager.core.duty_moves import Duties, DutyMoves
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.plan import Reason, Refusal, Steps
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.playback import Decided, Playback
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.shedding.joint import JointShedder

A, B, C = (BrokerId(f"{name}:1") for name in "abc")
PAID = IsolationPolicy(namespaces=("shop/paid",), primary=("a",), secondary=("b",))


def bundles(namespace: str, count: int) -> list[BundleId]:
    bounds = [f"0x{at * 0x10000000 // count * 16:08x}" for at in range(count)] + ["0xffffffff"]
    return [BundleId(f"{namespace}/{lower}_{upper}") for lower, upper in pairwise(bounds)]


def decided(
    owned: Mapping[BrokerId, Iterable[BundleId]],
    *,
    policies: Policies | None = None,
    loads: Mapping[BundleId, float] | None = None,
    registered: tuple[BrokerId, ...] = (A, B, C),
    most: int = 1000,
    rests: str = "the strategy rests",
    eases: bool = True,
    **more: Iterable[str],
) -> Decided:
    """Return a round on brokers whose bundles have a rate of ``loads``, else none."""
    tracker = LoadTracker()
    for broker, names in owned.items():
        stats = {name: BundleStats(msgs_in_per_s=(loads or {}).get(name, 0.0)) for name in names}
        tracker.put(BrokerLoad(broker=broker, listing=Listing.of(stats)))
    tracker.sample()
    planner = Planner(shedder=JointShedder(), settings=PlannerSettings(settle_s=0.0))
    duties: Any = {name: frozenset(names) for name, names in more.items()}
    return Playback(planner, np.random.default_rng(0)).round_with_duties(
        lambda obeyed, under_way: tracker.view(1.0, in_flight=under_way, policies=obeyed),
        policies or Policies(),
        Duties(registered=registered, most=most, **duties),
        rests=rests,
        eases=eases,
    )


def due(
    owned: Mapping[BrokerId, Iterable[BundleId]], **given: Any
) -> list[tuple[BundleId, BrokerId, str]]:
    moves = decided(owned, **given).moves
    where = {bundle: broker for broker, names in owned.items() for bundle in names}
    assert all(one.source == where[one.bundle] for one in moves)
    return [(one.bundle, one.target, str(one.cause)) for one in moves]


def isolated(policy: IsolationPolicy = PAID) -> Policies:
    return Policies(isolation={"paid": policy})


def test_a_bundle_goes_where_its_policy_allows_the_largest_first_and_needed_topics_last() -> None:
    one, two, three = bundles("shop/paid", 3)
    found = due(
        {A: [], B: [one, two], C: [three]},
        policies=isolated(),
        loads={one: 0.1, two: 0.9, three: 0.5},
        late=[two],
    )
    assert found == [(three, A, "isolation"), (one, A, "isolation"), (two, A, "isolation")]


@pytest.mark.parametrize(
    ("policy", "registered", "targets"),
    [
        (PAID, (A, B, C), {A}),
        # Its only primary broker is registered, though it cannot take bundles now.
        (PAID, (A, B, C), set()),
        (PAID, (B, C), {B}),
        (IsolationPolicy(namespaces=("shop/paid",), primary=("a",), min_limit=2), (A, B, C), {A}),
        (
            IsolationPolicy(
                namespaces=("shop/paid",), primary=("a",), secondary=("b",), min_limit=2
            ),
            (A, B, C),
            {A, B},
        ),
        (IsolationPolicy(namespaces=("shop/paid",), primary=("x",)), (A, B, C), set()),
    ],
)
def test_secondary_brokers_serve_while_fewer_than_min_limit_primary_ones_are_registered(
    policy: IsolationPolicy, registered: tuple[BrokerId, ...], targets: set[BrokerId]
) -> None:
    owned: dict[BrokerId, list[BundleId]] = {B: [], C: bundles("shop/paid", 4)}
    if A in targets:
        owned = {A: [], **owned}
    found = due(owned, policies=isolated(policy), registered=registered)
    assert {target for _, target, _ in found} == targets
    assert len(found) == (4 if targets else 0)


def test_a_namespace_without_a_policy_leaves_brokers_of_a_policy_and_held_bundles_stay() -> None:
    (free,), (held,), (paid,) = (bundles(f"shop/{name}", 1) for name in ("free", "held", "paid"))
    owned = {A: [free, held, paid], B: [], C: []}
    found = due(owned, policies=isolated(), held=[held], loads={paid: 1.0})
    assert found == [(free, B, "isolation")]


def groups(*names: str, domains: Mapping[BrokerId, str] | None = None) -> Policies:
    group = {Namespace(f"shop/{name}"): "Apart" if name == "x" else "apart" for name in names}
    return Policies(anti_affinity=group, domains=domains or {})


def test_namespaces_of_a_group_leave_brokers_that_serve_others_of_it() -> None:
    x, y, z = (bundles(f"shop/{name}", 2) for name in "xyz")
    found = due({A: [*x, *y, *z], B: [], C: []}, policies=groups("x", "y", "z"))
    assert [cause for *_, cause in found] == ["anti_affinity"] * 4
    assert {bundle: target for bundle, target, _ in found} == {
        **dict.fromkeys(x, B),
        **dict.fromkeys(y, C),
    }
    assert due({A: z, B: x, C: y}, policies=groups("x", "y", "z")) == []
    assert due({A: x, B: [], C: []}, policies=groups("x", "y")) == []


def test_a_namespace_that_cannot_leave_a_broker_whole_stays_and_the_other_one_leaves() -> None:
    x, y = bundles("shop/x", 2), bundles("shop/y", 1)
    found = due({A: [*x, *y], B: [], C: []}, policies=groups("x", "y"), held=[x[1]])
    assert found == [(y[0], B, "anti_affinity")]


def test_the_rest_of_a_namespace_follows_its_bundles_that_left_before() -> None:
    x, y = bundles("shop/x", 3), bundles("shop/y", 1)
    policies = groups("x", "y")
    assert due({A: [*x, *y], B: [], C: []}, policies=policies, most=1)[0][:2] == (x[0], B)
    found = due({A: [*x[1:], *y], B: [], C: [x[0]]}, policies=policies, loads={x[0]: 1.0})
    assert [target for _, target, _ in found] == [C, C]


def test_a_group_is_spread_over_failure_domains_before_brokers() -> None:
    x, y = bundles("shop/x", 1), bundles("shop/y", 1)
    domains = {A: "east", B: "east", C: "west"}
    policies = groups("x", "y", domains=domains)
    assert due({A: x, B: y, C: []}, policies=policies) == [(x[0], C, "anti_affinity")]
    assert due({A: x, B: y, C: []}, policies=groups("x", "y")) == []


@pytest.mark.parametrize("number", range(20))
def test_moves_of_groups_end_where_no_namespace_can_be_further_from_others(number: int) -> None:
    rng = np.random.default_rng((1, number))
    every = [bundle for name in "wxyz" for bundle in bundles(f"shop/{name}", 3)]
    owner = {bundle: (A, B, C)[int(rng.integers(3))] for bundle in every}
    domains = {A: "east", B: "east", C: "west"} if number % 2 else None
    policies = groups(*"wxyz", domains=domains)
    for _ in range(len(every)):
        owned = {name: [one for one in every if owner[one] == name] for name in (A, B, C)}
        found = due(owned, policies=policies, most=4)
        if not found:
            break
        owner.update({bundle: target for bundle, target, _ in found})
    assert found == []


def counts_after(owned: Mapping[BrokerId, list[BundleId]]) -> Counter[BrokerId]:
    counts = Counter({name: len(names) for name, names in owned.items()})
    where = {bundle: name for name, names in owned.items() for bundle in names}
    for bundle, target, cause in due(owned, idle=where):
        assert cause == "count"
        counts[where[bundle]] -= 1
        counts[target] += 1
    return counts


def test_bundles_without_traffic_are_spread_by_count() -> None:
    every = bundles("shop/x", 16)
    assert counts_after({A: every, B: [], C: []}) == {A: 6, B: 5, C: 5}
    assert counts_after({A: every[:6], B: every[6:11], C: every[11:]}) == {A: 6, B: 5, C: 5}
    assert due({A: every, B: [], C: []}) == []
    assert len(due({A: every, B: [], C: []}, idle=every, most=3)) == 3


def test_differences_of_a_tenth_stay() -> None:
    every = bundles("shop/x", 320)
    even = {A: every[:110], B: every[110:210], C: every[210:]}
    assert due(even, idle=every) == []
    assert len(due({A: every[:120], B: every[120:220], C: every[220:]}, idle=every)) > 0


def test_system_namespaces_are_counted_by_themselves() -> None:
    mine, system = bundles("shop/x", 8), bundles("pulsar/system", 4)
    owned: dict[BrokerId, list[BundleId]] = {A: system, B: mine[:4], C: mine[4:]}
    every = [*mine, *system]
    assert due(owned, idle=every, held=mine) == []
    found = due(owned, idle=every, apart=["pulsar/system"])
    assert Counter((namespace_of(bundle), target) for bundle, target, _ in found) == {
        ("pulsar/system", B): 1,
        ("pulsar/system", C): 1,
        ("shop/x", A): 2,
    }


def test_counts_obey_policies_and_needed_topics_stay() -> None:
    paid, other = bundles("shop/paid", 6), bundles("shop/x", 6)
    nothing: list[BundleId] = []
    assert due({A: paid, B: [], C: []}, idle=paid, policies=isolated()) == []
    absent = isolated(IsolationPolicy(namespaces=("shop/x",), primary=("gone",)))
    assert due({A: other, B: nothing, C: nothing}, idle=other, policies=absent) == []
    assert due({A: other, B: nothing, C: nothing}, idle=other, late=other) == []


def test_a_cluster_without_bundles_has_no_duties() -> None:
    assert due({A: [], B: []}, policies=isolated()) == []


def test_a_bundle_that_no_report_lists_any_more_has_no_duties() -> None:
    tracker, left = LoadTracker(), bundles("shop/x", 3)
    for owned in (left, left[:1]):
        tracker.put(BrokerLoad(broker=A, listing=Listing.of(dict.fromkeys(owned, BundleStats()))))
    tracker.put(BrokerLoad(broker=B, listing=Listing.of({})))
    policies = replace(groups("x", "y", domains={B: "east"}), isolation=isolated().isolation)
    view = tracker.view(1.0, in_flight={}, policies=policies)
    assert len(view.owned.listed_by) == len(left)
    found = DutyMoves(view, Duties(registered=(A, B), idle=left, most=9), Steps())
    assert [one.bundle for one in (*found.urgent, *found.counted)] == left[:1]


def test_the_strategy_follows_policies_and_what_is_counted_comes_last() -> None:
    (paid,), idle, busy = bundles("shop/paid", 1), bundles("shop/x", 9), bundles("shop/busy", 4)
    owned = {A: [], B: [*busy, paid, *idle], C: []}
    loads = {**dict.fromkeys(busy, 100.0), paid: 200.0}
    given: dict[str, Any] = {"policies": isolated(), "loads": loads, "idle": idle}
    found = decided(owned, **given, rests="")
    assert [one.bundle for one in found.urgent] == [paid]
    # The brokers of a policy take no others, and the bundles that are due are not seen elsewhere.
    assert {(one.bundle in busy, one.target) for one in found.plan.moves} == {(True, C)}
    assert {(one.bundle in idle, one.target) for one in found.counted} == {(True, C)}
    assert found.moves == (*found.urgent, *found.plan.moves, *found.counted)
    limited = decided(owned, **given, rests="", most=2)
    assert [len(one) for one in (limited.urgent, limited.plan.moves, limited.counted)] == [1, 1, 0]
    rests = decided(owned, **given)
    assert (rests.plan.moves, rests.urgent) == ((), found.urgent)
    assert rests.plan.refusals == (Refusal("", Reason.COOLING_DOWN, "the strategy rests"),)


@pytest.mark.parametrize(
    ("large", "eases", "moved"), [(100.0, True, True), (100.0, False, False), (1.0, True, False)]
)
def test_a_late_bundle_moves_if_nothing_else_does_and_it_is_worth_it(
    large: float, *, eases: bool, moved: bool
) -> None:
    late, (stays,) = bundles("shop/x", 2), bundles("shop/y", 1)
    owned, loads = {A: [*late, stays], B: []}, {**dict.fromkeys(late, large), stays: 100.0}
    policies = Policies(staying=frozenset({stays}))
    found = decided(owned, loads=loads, late=late, eases=eases, rests="", policies=policies)
    assert len({one.bundle for one in found.plan.moves}.intersection(late)) == moved


def test_a_draining_broker_is_emptied_first_its_most_loaded_bundle_last() -> None:
    one, two, three, needed = bundles("shop/free", 4)
    (paid,), (held,) = bundles("shop/paid", 1), bundles("shop/held", 1)
    owned = {A: [], B: [paid], C: [one, two, three, needed, held]}
    given: dict[str, Any] = {
        "policies": isolated(),
        "loads": {one: 0.5, two: 0.9, three: 0.1, needed: 0.1, paid: 1.0},
        "late": [needed],
        "held": [held],
        "draining": [C],
    }
    # A is for paid namespaces alone, so nothing else goes there.
    drains = [(name, B, "draining") for name in (three, one, two, needed)]
    assert due(owned, **given, cordoned=[C]) == [*drains, (paid, A, "isolation")]
    assert due(owned, **given, cordoned=[C], most=2) == drains[:2]
    assert due(owned, **given, cordoned=[B, C]) == [(paid, A, "isolation")]
    # Where policies forbid a broker and the one that they allow takes nothing, all stays.
    assert due(owned, policies=isolated(), cordoned=[A]) == []


def test_a_cordoned_broker_takes_nothing_and_keeps_what_it_has() -> None:
    idle = bundles("bench/idle", 6)
    found = due({A: idle, B: [], C: []}, idle=idle, cordoned=[C])
    assert {target for _, target, _ in found} == {B}
    assert due({A: [], B: [], C: idle}, idle=idle, cordoned=[A, B]) == []
    (first,), (second,) = bundles("shop/y", 1), bundles("shop/z", 1)
    apart = groups("y", "z")
    assert due({A: [first, second], B: [], C: []}, policies=apart, cordoned=[B, C]) == []
    assert due({A: [first], B: [second], C: []}, policies=apart, cordoned=[A]) == []
    drained = due({A: [first], B: [second], C: []}, policies=apart, cordoned=[A], draining=[A])
    assert drained == [(first, C, "draining")]
    nowhere = due({A: [first], B: []}, policies=apart, cordoned=[A, B], draining=[A])
    assert nowhere == []
