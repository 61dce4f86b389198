from collections.abc import Mapping
from typing import Any, Final

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.fields import to_json
from loadmanager.core.placement import PLACEMENTS, Placement
from loadmanager.core.planner import Planner
from loadmanager.core.policies import Policies
from loadmanager.core.round_memory import ROUND_MEMORY
from loadmanager.core.settings import values_of
from loadmanager.core.shedding import SHEDDERS, Shedder
from loadmanager.core.snapshot.document import Choice, InForce, Snapshot
from loadmanager.core.wire.policies import isolation_to_json
from loadmanager.core.wire.reports import report_to_json
from loadmanager.core.wire.shared_forms import rates_to_json

VERSION: Final = 1


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the snapshot as JSON; `decode_snapshot` returns an equal snapshot."""
    document: dict[str, Any] = {
        "version": VERSION,
        "takenAtMs": snapshot.taken_at_ms,
        "cluster": snapshot.cluster,
        "epoch": snapshot.epoch,
        "brokers": {name: report_to_json(one) for name, one in snapshot.reports.items()},
        "ageSeconds": dict(snapshot.age_s),
        "boundaries": {
            namespace: [f"0x{bound:08x}" for bound in one.bounds]
            for namespace, one in snapshot.boundaries.items()
        },
        "owners": dict(snapshot.owners),
        "inFlight": dict(snapshot.in_flight),
        "unowned": list(snapshot.unowned),
        "constraints": constraints_to_json(snapshot.policies),
        "memory": ROUND_MEMORY.to_json(snapshot.memory),
        "departedSecondsAgo": list(snapshot.departed_ago_s),
        "settings": in_force_to_json(snapshot.in_force),
    }
    if snapshot.averages is not None:
        document["bundles"] = {
            bundle: averages_to_json(one) for bundle, one in snapshot.averages.items()
        }
    if snapshot.running is not None:
        document["runningLoad"] = {
            broker: {"load": one.load, "bytesPerS": one.bytes_per_s}
            for broker, one in snapshot.running.items()
        }
    if snapshot.membership_changed_ago_s is not None:
        document["membershipChangedSecondsAgo"] = snapshot.membership_changed_ago_s
    return to_json(document)


def in_force(planner: Planner) -> InForce:
    """Return a planner's strategies, by our short names, with every setting."""
    return InForce(
        shedder=_choice(SHEDDERS, planner.shedder),
        placement=_choice(PLACEMENTS, planner.placement),
        planner=values_of(planner.settings),
        filters=values_of(planner.filters),
    )


def averages_to_json(averages: BundleAverages) -> dict[str, Any]:
    return {
        "shortTermData": _average_to_json(averages.short),
        "longTermData": _average_to_json(averages.long),
        "topics": averages.topics,
    }


def constraints_to_json(policies: Policies) -> dict[str, Any]:
    domains: dict[str, dict[str, list[str]]] = {}
    for broker, domain in policies.domains.items():
        domains.setdefault(domain, {"brokers": []})["brokers"].append(broker)
    isolation = {name: isolation_to_json(one) for name, one in policies.isolation.items()}
    return {
        "namespaceIsolationPolicies": isolation,
        "antiAffinityGroups": dict(policies.anti_affinity),
        "failureDomains": domains,
        **({"staying": sorted(policies.staying)} if policies.staying else {}),
    }


def _average_to_json(average: Average) -> dict[str, float]:
    return {
        "maxSamples": average.max_samples,
        "numSamples": average.samples,
        **rates_to_json(average.rates),
    }


def _choice(
    known: Mapping[str, type[Shedder]] | Mapping[str, type[Placement]],
    strategy: Shedder | Placement,
) -> Choice:
    kind = type(strategy)
    name = next((name for name, one in known.items() if one is kind), kind.__name__)
    return Choice(name, values_of(strategy))


def in_force_to_json(in_use: InForce) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, choice in (("shedder", in_use.shedder), ("placement", in_use.placement)):
        if choice is not None:
            document[name] = {"strategy": choice.strategy, "settings": dict(choice.settings)}
    for name, values in (("planner", in_use.planner), ("filters", in_use.filters)):
        if values:
            document[name] = dict(values)
    return document
