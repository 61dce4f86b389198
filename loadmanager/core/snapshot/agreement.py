from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby

from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    belongs_to_a_broker,
    namespace_of,
    range_of,
)
from loadmanager.core.load import LoadReport
from loadmanager.core.snapshot.document import Snapshot

Fault = Callable[[str, str], None]
"""Called with what contradicts another part, and with what was expected."""


def agreed(snapshot: Snapshot, fault: Fault) -> Snapshot:
    """Return the snapshot without entries that contradict others; ``fault`` may raise for each."""
    known = snapshot.reports.keys()
    for name, entries in (("ageSeconds", snapshot.age_s), ("runningLoad", snapshot.running or {})):
        for broker in entries.keys() - known:
            fault(f'{name}["{broker}"]', "a broker with a load report in brokers")
    owners = _sound(fault, "owners", snapshot.owners, known, snapshot.boundaries)
    in_flight = _sound(fault, "inFlight", snapshot.in_flight, known, snapshot.boundaries)
    for bundle in snapshot.unowned:
        if bundle in owners:
            fault(f"{bundle} is in unowned and in owners", "no owner for a bundle in unowned")
    return replace(
        snapshot,
        reports=snapshot.reports if owners else _without_rivals(fault, snapshot.reports, in_flight),
        owners=owners,
        in_flight=in_flight,
        unowned=tuple(bundle for bundle in snapshot.unowned if bundle not in owners),
    )


def overlapping(bundles: Iterable[BundleId]) -> Iterator[tuple[BundleId, BundleId]]:
    """Yield each bundle that overlaps an earlier one in its namespace, with the earlier one.

    The bundles that are not yielded do not overlap.
    """
    for _, group in groupby(sorted(bundles), key=namespace_of):
        last: BundleId | None = None
        for bundle in group:
            if last is not None and range_of(bundle)[0] < range_of(last)[1]:
                yield bundle, last
            else:
                last = bundle


def outside(bundle: BundleId, boundaries: Mapping[Namespace, Boundaries]) -> bool:
    """Return whether ``bundle`` is not within ``boundaries``; empty ones contain all bundles."""
    if not boundaries or belongs_to_a_broker(bundle):
        return False
    found = boundaries.get(namespace_of(bundle))
    return found is None or found.at(range_of(bundle)[0]) != bundle


def _sound(
    fault: Fault,
    name: str,
    entries: Mapping[BundleId, BrokerId],
    brokers: Collection[BrokerId],
    boundaries: Mapping[Namespace, Boundaries],
) -> dict[BundleId, BrokerId]:
    """Return the entries with known brokers and known, non-overlapping ranges."""
    kept = {}
    for bundle, broker in entries.items():
        place = f'{name}["{bundle}"]'
        if broker not in brokers:
            fault(f"{place} = {broker}", "a broker with a load report in brokers")
        elif outside(bundle, boundaries):
            fault(place, f"a bundle within boundaries of {namespace_of(bundle)}")
        else:
            kept[bundle] = broker
    for bundle, other in list(overlapping(kept)):
        what = f'{name}["{bundle}"] = {kept[bundle]}'
        fault(what, f"a range that does not overlap {other} of {kept[other]}")
        del kept[bundle]
    return kept


def _without_rivals(
    fault: Fault,
    reports: Mapping[BrokerId, LoadReport],
    in_flight: Mapping[BundleId, BrokerId],
) -> Mapping[BrokerId, LoadReport]:
    """Return the reports with each range in only one of them, for use without owners.

    If two brokers list a range, the one with the later report keeps it. A bundle in flight
    may be in two reports.
    """
    claims: dict[BundleId, list[BrokerId]] = {}
    for broker, report in reports.items():
        for bundle in report.bundles.keys() - in_flight.keys():
            claims.setdefault(bundle, []).append(broker)
    lost: dict[BrokerId, set[BundleId]] = {}
    for bundle, brokers in claims.items():
        latest = max(brokers, key=lambda one: reports[one].reported_at_ms)
        for broker in brokers:
            if broker != latest:
                what = f'brokers["{broker}"].bundles holds {bundle}'
                fault(what, f"a bundle that {latest} does not list too, or owners")
                lost.setdefault(broker, set()).add(bundle)
    for bundle, other in overlapping(claims):
        for broker in claims[bundle]:
            what = f'brokers["{broker}"].bundles holds {bundle}'
            fault(what, f"a range that does not overlap {other}, or owners")
            lost.setdefault(broker, set()).add(bundle)
    return {broker: _without(report, lost.get(broker, set())) for broker, report in reports.items()}


def _without(report: LoadReport, bundles: Collection[BundleId]) -> LoadReport:
    if not bundles:
        return report
    kept = {name: stats for name, stats in report.bundles.items() if name not in bundles}
    return replace(report, bundles=kept)
