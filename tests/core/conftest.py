"""What the core's tests share: a small cluster in a line or two."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Listing
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import view_of
from loadmanager.core.rates import Rates

# Their assertions tell what differs, as those of test files do.
pytest.register_assert_rewrite("vector_strategies", "vector_bundles", "planner_promises")

# HYPOTHESIS_EXAMPLES=5000 looks harder.
_EXAMPLES = int(os.environ.get("HYPOTHESIS_EXAMPLES", "25"))
settings.register_profile("core", max_examples=_EXAMPLES)
settings.load_profile("core")

MakeView = Callable[..., ClusterView]


def bundle(number: int, namespace: str = "t/n") -> BundleId:
    """Return the name of some bundle."""
    return bundle_id(Namespace(namespace), number * 16, number * 16 + 16)


def _load(name: str, cpu: float, sizes: Mapping[BundleId, float]) -> BrokerLoad:
    total = sum(sizes.values())
    return BrokerLoad(
        broker=BrokerId(name),
        usage=(cpu * 800, 0.0, 0.0, 0.0, 0.0),
        limit=(800.0, 0.0, 0.0, 0.0, 0.0),
        totals=Rates(total, 0.0, total, 0.0),
        listing=Listing.of({one: BundleStats(bytes_in_per_s=size) for one, size in sizes.items()}),
    )


def _averages(size: float) -> BundleAverages:
    rates = Rates(size, 0.0, size, 0.0)
    return BundleAverages(Average(10, 10, rates), Average(1000, 10, rates))


@pytest.fixture(name="bundle", scope="session")
def bundle_fixture() -> Callable[..., BundleId]:
    """Return the function that names bundles by number."""
    return bundle


@pytest.fixture(scope="session")
def make_view() -> MakeView:
    """Return a function that makes a view from ``{broker: (cpu fraction, {bundle: size})}``.

    A size is the bundle's bytes and messages per second, all inbound. ``changed`` maps
    brokers to fields of `BrokerLoad`; other keywords go to `view_of`.
    """

    def make(
        brokers: Mapping[str, tuple[float, Mapping[int, float]]],
        changed: Mapping[str, Mapping[str, Any]] | None = None,
        **given: Any,
    ) -> ClusterView:
        loads = []
        averages = {}
        for name, (cpu, numbered) in brokers.items():
            sizes = {bundle(number): size for number, size in numbered.items()}
            averages.update({one: _averages(size) for one, size in sizes.items()})
            loads.append(replace(_load(name, cpu, sizes), **(changed or {}).get(name, {})))
        return view_of(loads, averages, **given)

    return make
