from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from loadmanager.core.averages import LONG_SAMPLES, SHORT_SAMPLES, Average, BundleAverages
from loadmanager.core.bounds import DURATION_S, EPOCH, TIME_MS, TOTAL
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.fields import Fields, parse_snapshot
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    parse_broker,
    parse_bundle,
    parse_namespace,
)
from loadmanager.core.load import LoadReport
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.policies import IsolationPolicy, Policies
from loadmanager.core.round_memory import ROUND_MEMORY, RoundMemory
from loadmanager.core.shedding import SHEDDERS
from loadmanager.core.snapshot.agreement import agreed
from loadmanager.core.snapshot.document import Choice, InForce, RunningLoad, Snapshot
from loadmanager.core.snapshot.encoding import VERSION
from loadmanager.core.wire.policies import bounds_from, failure_domain_from, isolation_from
from loadmanager.core.wire.reports import report_from
from loadmanager.core.wire.shared_forms import rates_from

Value = TypeVar("Value")
Name = TypeVar("Name", bound=str)

_NAMES: Final = (
    "version",
    "takenAtMs",
    "cluster",
    "epoch",
    "brokers",
    "ageSeconds",
    "bundles",
    "runningLoad",
    "boundaries",
    "owners",
    "inFlight",
    "unowned",
    "constraints",
    "memory",
    "membershipChangedSecondsAgo",
    "departedSecondsAgo",
    "settings",
    "costModel",
)
_REGISTERED: Final = "brokerVersion"
"""A field of registrations that load reports do not have."""

_FORMER_SETTING: Final = "learned_costs"
"""A setting of the planner in snapshots and history of 0.1, which has no meaning any more."""

_SHOWN: Final = 80


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
    reading = Reading(where, {"brokers": found} if plain else found, lenient=lenient)
    return agreed(where, reading.snapshot(), reading.left_out, lenient=lenient)


class Reading:
    """Reads one document; its parts may also be read without the rest."""

    def __init__(self, where: str, found: Mapping[str, Any], *, lenient: bool = False) -> None:
        self._where = where
        self._found = found
        self._lenient = lenient
        self._fields = Fields(where, found)
        self.left_out: list[str] = []

    def snapshot(self) -> Snapshot:
        fields = self._fields
        if fields.count("version", VERSION) != VERSION:
            fields.refuse("version", f"{VERSION}, the version this program reads")
        for name in fields.names():
            if name not in _NAMES:
                with self._tolerated():
                    what = f"{name} is unknown"
                    raise MalformedContent(self._where, what, _one_of(_NAMES))
        if self._has("costModel"):
            self.left_out.append(f"{self._where}: costModel, which no decision uses any more")
        has_changed = "membershipChangedSecondsAgo" in self._found
        return Snapshot(
            reports=self._reports(),
            taken_at_ms=self._taken_at_ms(),
            cluster=fields.text("cluster", ""),
            epoch=fields.count("epoch", bound=EPOCH),
            age_s=self._each("ageSeconds", parse_broker, _age),
            averages=(
                self._each("bundles", parse_bundle, _averages) if self._has("bundles") else None
            ),
            running=(
                self._each("runningLoad", parse_broker, _running)
                if self._has("runningLoad")
                else None
            ),
            boundaries=self._each("boundaries", parse_namespace, _boundaries),
            owners=self._each("owners", parse_bundle, _broker),
            in_flight=self._each("inFlight", parse_bundle, _broker),
            unowned=self._bundles(fields, "unowned"),
            policies=self.policies(),
            memory=self.memory(),
            membership_changed_ago_s=(
                fields.rate("membershipChangedSecondsAgo", 0.0, DURATION_S) if has_changed else None
            ),
            departed_ago_s=(
                fields.rates("departedSecondsAgo", bound=DURATION_S)
                if "departedSecondsAgo" in self._found
                else ()
            ),
            in_force=self.in_force(),
        )

    @contextmanager
    def _tolerated(self, place: str = "") -> Iterator[None]:
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

    def _each(
        self,
        name: str,
        parse: Callable[[str], Name],
        read: Callable[[Fields, Name, str], Value],
        inside: str = "",
    ) -> dict[Name, Value]:
        found: dict[Name, Value] = {}
        outer = self._fields.inner(inside) if inside else self._fields
        path = f"{inside}.{name}" if inside else name
        for key, value in outer.inner(name).values().items():
            place = f'{path}["{key}"]'
            entry = Fields(self._where, {place: value})
            with self._tolerated(place):
                found[parse(key)] = read(entry, parse(key), place)
        return found

    def _reports(self) -> Mapping[BrokerId, LoadReport]:
        if not self._found.get("brokers"):
            self._fields.refuse("brokers", "load reports of one broker or more, by broker id")
        return self._each("brokers", parse_broker, self._report)

    def _report(self, entry: Fields, broker: BrokerId, place: str) -> LoadReport:
        report = report_from(entry.inner(place))
        if report.broker != broker:
            what = f"{place} is the report of {report.broker}"
            raise MalformedContent(self._where, what, f"that of {broker}, as its name says")
        return report

    def _taken_at_ms(self) -> int:
        if "takenAtMs" not in self._found and "memory" in self._found:
            self._fields.refuse("takenAtMs", "the wall clock's milliseconds, as memory holds times")
        return self._fields.count("takenAtMs", bound=TIME_MS)

    def _bundles(self, fields: Fields, name: str) -> tuple[BundleId, ...]:
        bundles = []
        for position, text in enumerate(fields.texts(name)):
            with self._tolerated(f"{name}[{position}] = {ascii(text)[:_SHOWN]}"):
                bundles.append(parse_bundle(text))
        return tuple(dict.fromkeys(bundles))

    def policies(self) -> Policies:
        domains = self._each("failureDomains", str, _domain, "constraints")
        return Policies(
            isolation=self._each("namespaceIsolationPolicies", str, _isolation, "constraints"),
            anti_affinity=self._each("antiAffinityGroups", parse_namespace, _text, "constraints"),
            domains={broker: name for name, brokers in domains.items() for broker in brokers},
            staying=frozenset(self._bundles(self._fields.inner("constraints"), "staying")),
        )

    def memory(self) -> RoundMemory:
        with self._tolerated():
            return ROUND_MEMORY.inner(self._fields, "memory")
        return RoundMemory()

    def _has(self, name: str) -> bool:
        return self._found.get(name) is not None

    def in_force(self) -> InForce:
        settings = self._fields.inner("settings")
        return InForce(
            shedder=_choice(settings, "shedder", SHEDDERS),
            placement=_choice(settings, "placement", PLACEMENTS),
            planner={
                name: value
                for name, value in settings.inner("planner").values().items()
                if name != _FORMER_SETTING
            },
            filters=settings.inner("filters").values(),
        )


def _age(entry: Fields, _name: str, place: str) -> float:
    return entry.rate(place, bound=DURATION_S)


def _text(entry: Fields, _name: str, place: str) -> str:
    return entry.text(place)


def _broker(entry: Fields, _name: str, place: str) -> BrokerId:
    text = entry.text(place)
    try:
        return parse_broker(text)
    except InvalidName as problem:
        entry.refuse(place, f"the owning broker, {problem.expected}")


def _isolation(entry: Fields, _name: str, place: str) -> IsolationPolicy:
    return isolation_from(entry.inner(place))


def _domain(entry: Fields, _name: str, place: str) -> tuple[BrokerId, ...]:
    return failure_domain_from(entry.inner(place))


def _boundaries(entry: Fields, namespace: Namespace, place: str) -> Boundaries:
    try:
        return Boundaries(namespace, bounds_from(entry, place))
    except InvalidName as problem:
        entry.refuse(place, f"{problem.expected}, without a gap")


def _running(entry: Fields, _broker: BrokerId, place: str) -> RunningLoad:
    one = entry.inner(place)
    return RunningLoad(one.rate("load", bound=TOTAL), one.rate("bytesPerS", bound=TOTAL))


def _averages(entry: Fields, _bundle: BundleId, place: str) -> BundleAverages:
    one = entry.inner(place)
    return BundleAverages(
        _average(one.inner("shortTermData"), SHORT_SAMPLES),
        _average(one.inner("longTermData"), LONG_SAMPLES),
        one.count("topics"),
    )


def _average(one: Fields, max_samples: int) -> Average:
    samples = one.count("numSamples", 1)
    if samples > one.count("maxSamples", max_samples):
        one.refuse("numSamples", "at most maxSamples")
    return Average(max_samples, min(samples, max_samples), rates_from(one))


def _choice(settings: Fields, name: str, known: Mapping[str, object]) -> Choice | None:
    choice = settings.inner(name)
    if not choice.names():
        return None
    strategy = choice.text("strategy")
    if strategy not in known:
        choice.refuse("strategy", _one_of(sorted(one for one in known if "." not in one)))
    return Choice(strategy, choice.inner("settings").values())


def _one_of(names: tuple[str, ...] | list[str]) -> str:
    return f"one of {', '.join(names)}"
