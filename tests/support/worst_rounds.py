"""Clusters that are made to cost a round as much as possible, of any size."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from joint_cluster import Broker, Traffic, view

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import Namespace
from loadmanager.core.placement import JointPlacement, LeastLongTermMessageRate
from loadmanager.core.planner import Planner
from loadmanager.core.planner_settings import PlannerSettings
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.shedding import JointShedder, Shedder, ThresholdShedder

FULL: Final = "full:1"
"""The broker that has most bundles; each other one has ten."""


def cluster(
    brokers: int, full: int, of_full: Callable[[int], float], others: float, **given: Any
) -> ClusterView:
    counts = [full, *(10 for _ in range(brokers - 1))]
    begins = [sum(counts[:place]) for place in range(brokers)]
    names = [FULL, *(f"b{place}:1" for place in range(1, brokers))]
    parts = [range(begin, begin + count) for begin, count in zip(begins, counts, strict=True)]
    msgs = {k: of_full(k) if k < full else others for k in range(begins[-1] + counts[-1])}
    traffic = {k: Traffic(msgs=one, size=100) for k, one in msgs.items()}
    every = {name: Broker(bundles=part) for name, part in zip(names, parts, strict=True)}
    return view(every, traffic, **given)


def planner(shedder: Shedder | None = None, *, even: bool = False, **given: Any) -> Planner:
    placement = JointPlacement() if shedder is None else LeastLongTermMessageRate()
    many = {"moves_per_round": 1_000_000, "moves_per_hour": 1_000_000, **given}
    found = Planner(
        shedder=shedder or JointShedder(),
        placement=placement,
        settings=PlannerSettings(settle_s=0.0, **many),
    )
    return replace(found, filters=replace(found.filters, even_bundles=even))


def alike(bundle: int) -> float:
    return 1 + 1e-6 * bundle


def _own(bundles: int, each: int) -> Mapping[int, str]:
    return {k: f"t/n{k // each}" for k in range(bundles)}


def _groups(count: int) -> Policies:
    return Policies(anti_affinity={Namespace(f"t/n{k}"): "group" for k in range(count)})


def _isolated(count: int) -> Policies:
    return Policies(
        isolation={
            f"p{k:05}": IsolationPolicy(namespaces=(f"t/(x|y)*{k}.*",), primary=(f"h{k}.*",))
            for k in range(count)
        }
    )


WORST: Final[Mapping[str, Callable[[int], tuple[ClusterView, Planner]]]] = {
    "idle bundles": lambda n: (cluster(20, n, lambda _: 0.0, 1.0), planner()),
    "bundles alike": lambda n: (cluster(200, n, alike, 20.0), planner()),
    "bundles that fit nowhere": lambda n: (cluster(200, n, alike, n / 10.4), planner()),
    "an anti-affinity group": lambda n: (
        cluster(200, n, alike, 20.0, namespaces=_own(n, 1), policies=_groups(n)),
        planner(),
    ),
    "even bundles": lambda n: (cluster(200, n, alike, 20.0), planner(even=True)),
    "isolation policies": lambda n: (
        cluster(200, n, alike, 20.0, namespaces=_own(n, 1), policies=_isolated(min(n, 1_000))),
        planner(),
    ),
    "offers in a group": lambda n: (
        cluster(
            200,
            n,
            lambda k: 170_000 / n + alike(k),
            20.0,
            namespaces=_own(n, 1),
            policies=_groups(n),
        ),
        planner(ThresholdShedder(min_bytes_per_s=0.0), in_flight_per_broker=1_000_000),
    ),
}
