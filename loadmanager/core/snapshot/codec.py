from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from typing import Any, Final, TypeVar

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages, Running
from loadmanager.core.bounds import DURATION_S, EPOCH, TIME_MS, TOTAL
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.fields import NEVER, At, Fields, Form, parse_snapshot, to_json
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    belongs_to_a_broker,
    namespace_of,
    parse_broker,
    parse_bundle,
    parse_namespace,
    range_of,
)
from loadmanager.core.load import LoadReport
from loadmanager.core.memory import ROUND_MEMORY, RoundMemory
from loadmanager.core.placement import PLACEMENTS, Placement
from loadmanager.core.planner import Planner
from loadmanager.core.policies import Policies
from loadmanager.core.settings import values_of
from loadmanager.core.shedding import SHEDDERS, Shedder
from loadmanager.core.snapshot.document import Choice, InForce, Snapshot
from loadmanager.core.wire.policies import (
    bounds_from,
    failure_domain_from,
    isolation_from,
    isolation_to_json,
)
from loadmanager.core.wire.reports import report_from, report_to_json
from loadmanager.core.wire.shared_forms import rates_from, rates_to_json

Value = TypeVar("Value")
Name = TypeVar("Name", bound=str)

VERSION: Final = 1
_REGISTERED: Final = "brokerVersion"
"""A field of registrations that load reports do not have."""

_FORMER_SETTING: Final = "learned_costs"
"""A setting of the planner in snapshots and history of 0.1, which has no meaning any more."""

_SHOWN: Final = 80


class SnapshotFields(Fields):
    """The parts of a snapshot; if ``lenient``, entries with faults are listed in ``left_out``."""

    def __init__(self, where: str, found: Mapping[str, Any], *, lenient: bool = False) -> None:
        super().__init__(where, found)
        self._lenient = lenient
        self.left_out: list[str] = []

    def fault(self, what: str, expected: str) -> None:
        with self.tolerated():
            raise MalformedContent(self._where, what, expected)

    @contextmanager
    def tolerated(self, place: str = "") -> Iterator[None]:
        """If lenient, list an error in ``left_out`` instead of raising it.

        ``place`` is that of a name that may be invalid.
        """
        try:
            try:
                yield
            except InvalidName as problem:
                raise MalformedContent(self._where, place, problem.expected) from None
        except MalformedContent as problem:
            if not self._lenient:
                raise
            self.left_out.append(str(problem))

    def each(
        self,
        name: str,
        parse: Callable[[str], Name],
        read: Callable[[Fields, Name, str], Value],
        inside: str = "",
    ) -> dict[Name, Value]:
        found: dict[Name, Value] = {}
        outer = self.inner(inside) if inside else self
        path = f"{inside}.{name}" if inside else name
        for key, value in outer.inner(name).values().items():
            place = f'{path}["{key}"]'
            entry = Fields(self._where, {place: value})
            with self.tolerated(place):
                found[parse(key)] = read(entry, parse(key), place)
        return found

    def bundles(self, name: str, inside: str = "") -> tuple[BundleId, ...]:
        bundles = []
        for position, text in enumerate((self.inner(inside) if inside else self).texts(name)):
            with self.tolerated(f"{name}[{position}] = {ascii(text)[:_SHOWN]}"):
                bundles.append(parse_bundle(text))
        return tuple(dict.fromkeys(bundles))

    def reports(self, name: str) -> dict[BrokerId, LoadReport]:
        if not self.values().get(name):
            self.refuse(name, "load reports of one broker or more, by broker id")
        return self.each(name, parse_broker, self._report)

    def _report(self, entry: Fields, broker: BrokerId, place: str) -> LoadReport:
        report = report_from(entry.inner(place))
        if report.broker != broker:
            what = f"{place} is the report of {report.broker}"
            raise MalformedContent(self._where, what, f"that of {broker}, as its name says")
        return report

    def taken_at_ms(self, name: str) -> int:
        if name not in self.names() and "memory" in self.names():
            self.refuse(name, "the wall clock's milliseconds, as memory holds times")
        return self.count(name, bound=TIME_MS)

    def memory(self, name: str) -> RoundMemory:
        with self.tolerated():
            return ROUND_MEMORY.inner(self, name)
        return RoundMemory()

    def policies(self, name: str) -> Policies:
        domains = self.each("failureDomains", str, _inner(failure_domain_from), name)
        return Policies(
            isolation=self.each("namespaceIsolationPolicies", str, _inner(isolation_from), name),
            anti_affinity=self.each("antiAffinityGroups", parse_namespace, _text, name),
            domains={broker: name for name, brokers in domains.items() for broker in brokers},
            staying=frozenset(self.bundles("staying", name)),
        )

    def in_force(self, name: str) -> InForce:
        settings = self.inner(name)
        planner = dict(settings.inner("planner").values())
        planner.pop(_FORMER_SETTING, None)
        return InForce(
            shedder=_choice(settings, "shedder", SHEDDERS),
            placement=_choice(settings, "placement", PLACEMENTS),
            planner=planner,
            filters=settings.inner("filters").values(),
        )


def _inner(read: Callable[[Fields], Value]) -> Callable[[Fields, Any, str], Value]:
    return lambda entry, _name, place: read(entry.inner(place))


def _text(entry: Fields, _name: str, place: str) -> str:
    return entry.text(place)


def _broker(entry: Fields, _name: str, place: str) -> BrokerId:
    text = entry.text(place)
    try:
        return parse_broker(text)
    except InvalidName as problem:
        entry.refuse(place, f"the owning broker, {problem.expected}")


def _boundaries(entry: Fields, namespace: Namespace, place: str) -> Boundaries:
    try:
        return Boundaries(namespace, bounds_from(entry, place))
    except InvalidName as problem:
        entry.refuse(place, f"{problem.expected}, without a gap")


def _choice(settings: Fields, name: str, known: Mapping[str, object]) -> Choice | None:
    choice = settings.inner(name)
    if not choice.names():
        return None
    strategy = choice.text("strategy")
    if strategy not in known:
        choice.refuse("strategy", _one_of(sorted(one for one in known if "." not in one)))
    return Choice(strategy, choice.inner("settings").values())


def _average(name: str, max_samples: int) -> At:
    def read(found: Fields, name: str) -> Average:
        one = found.inner(name)
        samples = one.count("numSamples", 1)
        if samples > one.count("maxSamples", max_samples):
            one.refuse("numSamples", "at most maxSamples")
        return Average(max_samples, min(samples, max_samples), rates_from(one))

    def write(average: Average) -> dict[str, float]:
        counts = {"maxSamples": average.max_samples, "numSamples": average.samples}
        return {**counts, **rates_to_json(average.rates)}

    return At(name=name, read=read, write=write)


_AVERAGES: Final = Form(
    BundleAverages,
    short=_average("shortTermData", SHORT_SAMPLES),
    long=_average("longTermData", LONG_SAMPLES),
)
_RUNNING: Final = Form(
    Running, load=At(bound=TOTAL), bytes_per_s=At(bound=TOTAL), started_at_ms=None
)


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


def in_force_to_json(in_use: InForce) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, choice in (("shedder", in_use.shedder), ("placement", in_use.placement)):
        if choice is not None:
            document[name] = {"strategy": choice.strategy, "settings": dict(choice.settings)}
    for name, values in (("planner", in_use.planner), ("filters", in_use.filters)):
        if values:
            document[name] = dict(values)
    return document


def _each(
    parse: Callable[[str], Name],
    read: Callable[[Fields, Name, str], Any],
    write: Callable[[Any], Any] = lambda value: value,
    *,
    name: str = "",
    optional: bool = False,
) -> At:
    """Write an entry for each name; an optional part may be unknown, which is None."""

    def read_each(found: SnapshotFields, name: str) -> Mapping[Name, Any] | None:
        if optional and found.values().get(name) is None:
            return None
        return found.each(name, parse, read)

    return At(
        name=name,
        read=read_each,
        write=lambda every: {key: write(value) for key, value in every.items()},
        omitted=None if optional else NEVER,
    )


_SNAPSHOT: Final = Form(
    Snapshot,
    taken_at_ms=At(read=SnapshotFields.taken_at_ms),
    epoch=At(bound=EPOCH),
    reports=At(
        name="brokers",
        read=SnapshotFields.reports,
        write=lambda reports: {name: report_to_json(one) for name, one in reports.items()},
    ),
    age_s=_each(parse_broker, lambda age, _, at: age.rate(at, bound=DURATION_S), name="ageSeconds"),
    boundaries=_each(
        parse_namespace, _boundaries, lambda one: [f"0x{bound:08x}" for bound in one.bounds]
    ),
    owners=_each(parse_bundle, _broker),
    in_flight=_each(parse_bundle, _broker),
    unowned=At(read=SnapshotFields.bundles),
    policies=At(name="constraints", read=SnapshotFields.policies, write=constraints_to_json),
    memory=At(read=SnapshotFields.memory, write=ROUND_MEMORY.to_json),
    departed_ago_s=At(
        name="departedSecondsAgo",
        read=lambda found, name: (
            found.rates(name, bound=DURATION_S) if name in found.names() else ()
        ),
    ),
    in_force=At(name="settings", read=SnapshotFields.in_force, write=in_force_to_json),
    averages=_each(
        parse_bundle, _inner(_AVERAGES.read), _AVERAGES.to_json, name="bundles", optional=True
    ),
    running=_each(
        parse_broker, _inner(_RUNNING.read), _RUNNING.to_json, name="runningLoad", optional=True
    ),
    membership_changed_ago_s=At(
        name="membershipChangedSecondsAgo",
        bound=DURATION_S,
        omitted=None,
    ),
    left_out=None,
)
_NAMES: Final = ("version", *_SNAPSHOT.names, "costModel")


def encode_snapshot(snapshot: Snapshot) -> bytes:
    """Return the snapshot as JSON; `decode_snapshot` returns an equal snapshot."""
    return to_json({"version": VERSION, **_SNAPSHOT.to_json(snapshot)})


def decode_snapshot(where: str, data: bytes, *, lenient: bool = False) -> Snapshot:
    """Return the snapshot in ``data``; ``where`` names the file in messages.

    A document without any field of a snapshot is read as a plain dump of
    ``/loadbalance/brokers`` as Pulsar's own brokers write it: load reports by broker id. Our
    brokers store loads separately, so a dump of only their registrations is refused.

    With ``lenient``, entries that cannot be read or contradict others are left out and listed in
    ``left_out``. Raises `MalformedContent`: the first fault, with its place and the expected
    content.
    """
    found = parse_snapshot(where, data)
    plain = bool(found) and not found.keys() & set(_NAMES)
    if plain and all(isinstance(one, dict) and _REGISTERED in one for one in found.values()):
        raise MalformedContent(
            where,
            "registrations without loads, which brokers of format 2 keep in /loadbalance/loads",
            "a snapshot of the leader (GET /admin/v2/loadmanager/snapshot) or load reports",
        )
    fields = SnapshotFields(where, {"brokers": found} if plain else found, lenient=lenient)
    if fields.count("version", VERSION) != VERSION:
        fields.refuse("version", f"{VERSION}, the version this program reads")
    for name in fields.names():
        if name not in _NAMES:
            fields.fault(f"{name} is unknown", _one_of(_NAMES))
    if fields.values().get("costModel") is not None:
        fields.left_out.append(f"{where}: costModel, which no decision uses any more")
    snapshot = agreed(_SNAPSHOT.read(fields), fields.fault)
    return replace(snapshot, left_out=tuple(fields.left_out))


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


def in_force(planner: Planner) -> InForce:
    """Return a planner's strategies, by our short names, with every setting."""
    return InForce(
        shedder=_in_use(SHEDDERS, planner.shedder),
        placement=_in_use(PLACEMENTS, planner.placement),
        planner=values_of(planner.settings),
        filters=values_of(planner.filters),
    )


def _in_use(
    known: Mapping[str, type[Shedder]] | Mapping[str, type[Placement]],
    strategy: Shedder | Placement,
) -> Choice:
    kind = type(strategy)
    name = next((name for name, one in known.items() if one is kind), kind.__name__)
    return Choice(name, values_of(strategy))


def _one_of(names: tuple[str, ...] | list[str]) -> str:
    return f"one of {', '.join(names)}"
