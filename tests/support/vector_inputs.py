"""Reading recorded decisions of Pulsar: the inputs all of them have in common."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.broker_table import BrokerLoad
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Listing
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import view_of
from loadmanager.core.plan import Offer
from loadmanager.core.rates import Rates

Json = dict[str, Any]
RESOURCES = ("cpu", "memory", "directMemory", "bandwidthIn", "bandwidthOut")


@dataclass(slots=True)
class Count:
    """How much was compared.

    ``answers`` are single decisions, compared with Pulsar's. Others are ``in_part``
    compared, ``left_out``, or known to be ``different``, each by a rule that
    ``tests/vectors/README.md`` tells.
    """

    scenarios: int = 0
    rounds: int = 0
    answers: int = 0
    in_part: int = 0
    left_out: int = 0
    different: int = 0


def rates(found: Json) -> Rates:
    """Return the rates in a record; those that are absent are 0."""
    names = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut")
    return Rates(*(float(found.get(name, 0.0)) for name in names))


def averages(found: Json) -> BundleAverages:
    short, long = rates(found["shortTerm"]), rates(found.get("longTerm", {}))
    return BundleAverages(Average(10, 1, short), Average(1000, 1, long), found.get("topics", 0))


def stats(found: Json) -> BundleStats:
    return BundleStats(
        msgs_in_per_s=found.get("msgRateIn", 0.0),
        msgs_out_per_s=found.get("msgRateOut", 0.0),
        bytes_in_per_s=found.get("msgThroughputIn", 0.0),
        bytes_out_per_s=found.get("msgThroughputOut", 0.0),
        topics=found.get("topics", 0),
        producers=found.get("producerCount", 0),
        consumers=found.get("consumerCount", 0),
        cache_size_bytes=found.get("cacheSize", 0),
    )


def columns(found: Json, part: str) -> tuple[float, ...]:
    """Return ``usage`` or ``limit`` of each resource."""
    return tuple(float(found.get(name, {}).get(part, 0.0)) for name in RESOURCES)


def broker_load(name: str, found: Json) -> BrokerLoad:
    coming = found.get("preallocatedBundleData", {}).values()
    return BrokerLoad(
        broker=BrokerId(name),
        usage=columns(found, "usage"),
        limit=columns(found, "limit"),
        totals=rates(found),
        listing=Listing.of(
            {BundleId(bundle): BundleStats() for bundle in found.get("bundles", ())}
        ),
        long_msgs_per_s=sum(
            found.get("timeAverageData", {}).get(f"longTermMsgRate{way}", 0.0)
            for way in ("In", "Out")
        ),
        preallocated_msgs_per_s=sum(rates(one.get("longTerm", {})).msgs_per_s for one in coming),
    )


def views(scenario: Json) -> Iterator[tuple[Json, ClusterView]]:
    """Yield each round with its view; inputs that a round lacks are those of the one before."""
    now: Json = {"bundle_data": {}, "recently_unloaded": {}}
    for one in scenario["rounds"]:
        now |= {name: one[name] for name in (*now, "brokers") if name in one}
        yield (
            one,
            view_of(
                [broker_load(name, found) for name, found in now["brokers"].items()],
                {BundleId(name): averages(found) for name, found in now["bundle_data"].items()},
                recently_moved=now["recently_unloaded"],
            ),
        )


def same(got: object, want: object) -> bool:
    """Return whether two values are equal, numbers to 1e-9 of themselves."""
    if isinstance(want, dict) and isinstance(got, Mapping):
        return got.keys() == want.keys() and all(same(got[key], want[key]) for key in want)
    if isinstance(want, str) and isinstance(got, float):
        return math.isnan(got) if want == "NaN" else got == float(want)
    if isinstance(want, float) and isinstance(got, float):
        return math.isclose(got, want, rel_tol=1e-9, abs_tol=1e-12)
    return got == want


def by_source(offers: tuple[Offer, ...]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for offer in offers:
        found.setdefault(offer.source, []).append(offer.bundle)
    return found
