"""What a round does besides weighing: it takes time linear in the cluster, or ends with steps."""

import time
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import pytest

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Listing
from loadmanager.core.duty_moves import Duties, DutyMoves
from loadmanager.core.ids import BrokerId, BundleId, Namespace, namespace_of
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.optimality import optimality_of
from loadmanager.core.plan import Reason, Steps, cut_short
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.playback import Decided, Playback
from loadmanager.core.policies import IsolationPolicy, Policies, open_to
from loadmanager.core.rates import Rates
from loadmanager.core.scores import RESOURCES
from loadmanager.core.splitting.finder import SplitRules, find_splits

BROKERS: Final = tuple(BrokerId(f"b{number:04}:1") for number in range(100))
BUSY: Final = BundleStats(msgs_in_per_s=1e6, bytes_in_per_s=1e9, topics=2)


def spread(count: int, over: int, each: int) -> dict[BrokerId, list[BundleId]]:
    """Bundles of namespaces of ``each``, one bundle after the other on ``over`` brokers."""
    owned: dict[BrokerId, list[BundleId]] = {one: [] for one in BROKERS}
    bounds = [f"0x{0x10000 * place:08x}" for place in range(min(each, 0xFFFF) + 1)]
    ranges = [f"{low}_{high}" for low, high in pairwise(bounds)]
    for k in range(count):
        owned[BROKERS[k % over]].append(BundleId(f"t/n{k // each}/{ranges[k % each]}"))
    return owned


def viewed(
    owned: Mapping[BrokerId, list[BundleId]],
    policies: Policies,
    stats: BundleStats = BundleStats(),  # noqa: B008 - a constant
) -> ClusterView:
    tracker = LoadTracker()
    for broker, names in owned.items():
        listing = Listing.of(dict.fromkeys(names, stats))
        figures: Any = {"usage": (50.0,) * len(RESOURCES), "limit": (100.0,) * len(RESOURCES)}
        tracker.put(BrokerLoad(broker=broker, listing=listing, **figures))
    tracker.sample()
    return tracker.view(1.0, in_flight={}, policies=policies)


def grouped(owned: Mapping[BrokerId, list[BundleId]], *, domains: bool = False) -> Policies:
    names = {namespace_of(one) for bundles in owned.values() for one in bundles}
    places = {one: one[:3] for one in BROKERS} if domains else {}
    return Policies(anti_affinity=dict.fromkeys(names, "group"), domains=places)


def isolated(count: int) -> Policies:
    policy = {
        f"p{k:03}": IsolationPolicy(namespaces=(f"t/n{k}",), primary=(f"b{k % 100:04}", f"x{k}"))
        for k in range(count)
    }
    return Policies(isolation=policy)


Work = Callable[[], object]


def duties(
    owned: Mapping[BrokerId, list[BundleId]], policies: Policies, *draining: BrokerId
) -> Work:
    view, every = viewed(owned, policies), {one for names in owned.values() for one in names}
    given = Duties(registered=BROKERS, most=20, idle=every, draining=draining, cordoned=draining)
    return lambda: DutyMoves(view, given, Steps())


def optimality(owned: Mapping[BrokerId, list[BundleId]], policies: Policies) -> Work:
    view = viewed(owned, policies, BUSY)
    return lambda: optimality_of(view)


def splits(owned: Mapping[BrokerId, list[BundleId]]) -> Work:
    reports = {broker: dict.fromkeys(names, BUSY) for broker, names in owned.items()}
    counts = {namespace_of(one): 1 for names in owned.values() for one in names}
    rates = Rates(*BUSY.row())
    return lambda: find_splits(SplitRules(), reports, lambda _: rates, counts)


def of_all(names: dict[BrokerId, list[BundleId]], **given: bool) -> Work:
    return duties(names, grouped(names, **given))


WORKS: Final[Mapping[str, Callable[[int], Work]]] = {
    "idle bundles of one broker": lambda n: duties(spread(n, 1, n), Policies()),
    "idle bundles that a policy keeps": lambda n: duties(spread(n, 1, n), isolated(1)),
    "namespaces under many policies": lambda n: duties(spread(n, 1, 1), isolated(300)),
    "a group on one broker each": lambda n: of_all(spread(n, 50, 1)),
    "a group of wide namespaces": lambda n: of_all(spread(n, 100, max(n // 10, 1))),
    "a group in failure domains": lambda n: of_all(spread(n, 50, 1), domains=True),
    "a draining broker": lambda n: duties(spread(n, 1, n), Policies(), BROKERS[0]),
    "a group that drains": lambda n: duties(owned := spread(n, 1, 1), grouped(owned), BROKERS[0]),
    "a bound": lambda n: optimality(spread(n, 100, 1), Policies()),
    "bounds under many policies": lambda n: optimality(spread(n, 100, 1), isolated(300)),
    "splits": lambda n: splits(spread(n, 1, 10)),
}


def spent_s(work: Work) -> float:
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


@pytest.mark.parametrize("of", sorted(WORKS))
def test_four_times_the_bundles_take_at_most_eight_times_as_long(of: str) -> None:
    few, many = WORKS[of](4_000), WORKS[of](16_000)
    few()  # What is kept from round to round is there.
    many()
    least_s, most_s = (min(spent_s(work) for _ in range(2)) for work in (few, many))
    assert most_s <= 0.1 + 8 * least_s


def test_the_hosts_of_many_policies_are_matched_at_once() -> None:
    """Each host with each pattern, as before, takes ten seconds."""
    policies = isolated(300)
    brokers = tuple(BrokerId(f"b{number:04}:1") for number in range(5_000))
    policies.governing(Namespace("t/n1"))
    work = [None, *policies.isolation.values()]
    assert spent_s(lambda: [open_to(policies, one, brokers) for one in work]) < 2.0
    assert np.flatnonzero(open_to(policies, work[1], brokers)).tolist() == [0]
    assert np.flatnonzero(~open_to(policies, None, brokers)).tolist() == list(range(100))


def decided(policies: Policies, owned: Mapping[BrokerId, list[BundleId]], steps: int) -> Decided:
    view, every = viewed(owned, policies), [one for names in owned.values() for one in names]
    planner = Planner(settings=PlannerSettings(settle_s=0.0, steps_per_round=steps))
    playback = Playback(planner, np.random.default_rng(0))
    given = Duties(registered=BROKERS, most=1_000, idle=every)
    return playback.round_with_duties(lambda *_: view, policies, given)


@pytest.mark.parametrize(
    ("each", "why"), [(1, "to keep namespaces of groups apart"), (400, "to spread bundles")]
)
def test_duties_take_a_quarter_of_the_steps_and_the_first_moves_are_made(
    each: int, why: str
) -> None:
    owned = spread(400, 1, each)
    policies = grouped(owned) if each == 1 else Policies()
    whole, cut = (decided(policies, owned, steps) for steps in (10**9, 40_000))
    assert not cut_short(whole.plan.refusals)
    moves = [(*one.urgent, *one.counted) for one in (whole, cut)]
    assert moves[1] == moves[0][: len(moves[1])]
    assert 0 < len(moves[1]) < len(moves[0])
    assert why in cut_short(cut.plan.refusals)
    assert f"{BROKERS[0]} with 400 bundles took 10," in cut_short(cut.plan.refusals)
    assert cut.plan.refusals[0].reason is Reason.WORK_BUDGET
    assert 0 < cut.planner.settings.steps_per_round < 30_000
