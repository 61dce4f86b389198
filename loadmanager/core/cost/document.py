"""The learned costs of bundles, as written by the pipeline's ``costs`` job.

One document holds the costs for every class of brokers: the usage of each resource per unit of
each rate, its uncertainty, and how well it predicted held-out data. Rates and resources have the
names and units of history: ``cpu`` in percent of one core, memory in MiB, bandwidth in kbit/s;
messages and bytes per second, numbers of topics and of connections (producers and consumers).
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from dataclasses import fields as members
from typing import Any, Final, TypeVar

from loadmanager.core.bounds import RATE, TIME_MS
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.fields import Fields, packed, unpacked_object
from loadmanager.core.ids import BrokerId, parse_broker
from loadmanager.core.scores import RESOURCES

FORMAT: Final = 1
RATES: Final = (
    "msgs_in_per_s",
    "msgs_out_per_s",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "topics",
    "connections",
)
"""The rates that determine a bundle's cost, in the order of the columns of all arrays."""

MOST_BYTES: Final = 8 * 2**20
MOST_CLASSES: Final = 100
MOST_BROKERS: Final = 10_000
_MOST_TEXT: Final = 200

_Read = TypeVar("_Read")


@dataclass(frozen=True, slots=True)
class Term:
    """An amount with its 90 % interval: 0 <= ``low`` <= ``value`` <= ``high``."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """How well the costs of one class predicted a resource in held-out minutes.

    ``mape`` is the mean absolute error as a fraction of the measured usage, and ``coverage`` the
    fraction of minutes within their 90 % interval. ``baseline_mape`` is the error of traffic
    shares in the same minutes. ``moves`` is the number of moves used as natural experiments, and
    ``move_mape`` the error of the predicted usage of the targets after them. ``typical_error``
    is half the 90 % interval of the total cost of typical traffic, as a fraction of that cost:
    terms that are confused with each other do not affect it. None means not measured.
    """

    mape: float
    coverage: float
    held_out_minutes: int
    baseline_mape: float | None = None
    moves: int = 0
    move_mape: float | None = None
    typical_error: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassCosts:
    """The cost of traffic on brokers of one class.

    ``resources`` has the terms of a resource by rate; a rate without a term costs nothing.
    ``brokers`` were observed in the class, for ``minutes`` in total. ``typical`` is the mean of
    each rate over those minutes: it shows which terms matter.
    """

    resources: Mapping[str, Mapping[str, Term]]
    brokers: tuple[BrokerId, ...]
    minutes: int
    typical: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CostDocument:
    """The costs learned from the history of ``cluster`` from ``since_ms`` to ``until_ms``.

    ``backgrounds`` is each broker's usage of a resource without traffic, in the resource's unit.
    Classes are named as in the configuration; "" if none is set.
    """

    cluster: str
    made_at_ms: int
    since_ms: int
    until_ms: int
    classes: Mapping[str, ClassCosts]
    backgrounds: Mapping[BrokerId, Mapping[str, Term]] = field(default_factory=dict)
    quality: Mapping[str, Mapping[str, Quality]] = field(default_factory=dict)


def encode_costs(document: CostDocument) -> bytes:
    """Return the document as JSON for a file.

    Raises:
        MalformedContent: `decode_costs` would reject it.
    """
    found = costs_to_json(document)
    try:
        text = json.dumps(found, indent=1, allow_nan=False).encode()
    except ValueError:
        raise MalformedContent("cost model", "NaN or an infinity", "finite numbers") from None
    decode_costs("cost model", text)
    return text


def costs_to_json(document: CostDocument) -> dict[str, Any]:
    """Return the document as a JSON object, unchecked."""
    plain: dict[str, Any] = _plain(document)
    return {"format": FORMAT, **plain}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in members(value)}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return list(value) if isinstance(value, tuple) else value


def pack_costs(document: CostDocument) -> bytes:
    """Return the document in its compressed form for ZooKeeper; raises as `encode_costs`."""
    found = json.loads(encode_costs(document))
    return packed(json.dumps(found, separators=(",", ":")).encode())


def decode_costs(where: str, data: bytes) -> CostDocument:
    """Return the document in ``data``, plain JSON or compressed by zlib or gzip."""
    return costs_of(Fields(where, unpacked_object(where, data, MOST_BYTES)))


def costs_of(fields: Fields) -> CostDocument:
    """Return the document in a JSON object."""
    if fields.count("format", default=None) != FORMAT:
        fields.refuse("format", f"{FORMAT}, the only one this version knows")
    since_ms, until_ms = (fields.count(name, None, TIME_MS) for name in ("since_ms", "until_ms"))
    if until_ms < since_ms:
        fields.refuse("until_ms", f"since_ms ({since_ms}) or later")
    classes = _each(fields, "classes", MOST_CLASSES, _class_costs)
    for name in classes:
        _check_length(fields, "classes", name)
    quality = _each(fields, "quality", MOST_CLASSES, _quality)
    if not quality.keys() <= classes.keys():
        fields.refuse("quality", "classes that have costs, no others")
    backgrounds = _each(fields, "backgrounds", MOST_BROKERS, lambda one: _terms(one, RESOURCES))
    _check_brokers(fields, "backgrounds", tuple(backgrounds))
    _check_length(fields, "cluster", fields.text("cluster"))
    return CostDocument(
        cluster=fields.text("cluster"),
        made_at_ms=fields.count("made_at_ms", None, TIME_MS),
        since_ms=since_ms,
        until_ms=until_ms,
        classes=classes,
        backgrounds={BrokerId(broker): terms for broker, terms in backgrounds.items()},
        quality=quality,
    )


def _class_costs(fields: Fields) -> ClassCosts:
    brokers = fields.texts("brokers")
    _check_brokers(fields, "brokers", brokers)
    typical, resources = fields.inner("typical"), fields.inner("resources")
    _check_names(typical, RATES)
    _check_names(resources, RESOURCES)
    return ClassCosts(
        resources={name: _terms(resources.inner(name), RATES) for name in resources.names()},
        brokers=tuple(map(BrokerId, brokers)),
        minutes=fields.count("minutes", default=None),
        typical={rate: _amount(typical, rate) for rate in typical.names()},
    )


def _quality(fields: Fields) -> Mapping[str, Quality]:
    _check_names(fields, RESOURCES)
    return {resource: _quality_of(fields.inner(resource)) for resource in fields.names()}


def _quality_of(fields: Fields) -> Quality:
    coverage = _amount(fields, "coverage")
    if coverage > 1.0:
        fields.refuse("coverage", "a fraction from 0 to 1")
    return Quality(
        mape=_amount(fields, "mape"),
        coverage=coverage,
        held_out_minutes=fields.count("held_out_minutes", default=None),
        baseline_mape=_amount_or_none(fields, "baseline_mape"),
        moves=fields.count("moves"),
        move_mape=_amount_or_none(fields, "move_mape"),
        typical_error=_amount_or_none(fields, "typical_error"),
    )


def _terms(fields: Fields, allowed: tuple[str, ...]) -> Mapping[str, Term]:
    _check_names(fields, allowed)
    return {name: _term(fields.inner(name)) for name in fields.names()}


def _term(fields: Fields) -> Term:
    value, low, high = (_amount(fields, name) for name in ("value", "low", "high"))
    if not low <= value <= high:
        fields.refuse("value", f"a number from low ({low}) to high ({high})")
    return Term(value, low, high)


def _each(
    fields: Fields, name: str, most: int, read: Callable[[Fields], _Read]
) -> Mapping[str, _Read]:
    inner = fields.inner(name)
    if len(inner.names()) > most:
        fields.refuse(name, f"at most {most} entries instead of {len(inner.names())}")
    return {one: read(inner.inner(one)) for one in inner.names()}


def _amount(fields: Fields, name: str) -> float:
    value = fields.rate(name, default=-1.0)
    if value < 0.0:
        fields.refuse(name, RATE.expected)
    return value


def _amount_or_none(fields: Fields, name: str) -> float | None:
    return None if fields.values().get(name) is None else _amount(fields, name)


def _check_names(fields: Fields, allowed: tuple[str, ...]) -> None:
    for name in fields.names():
        if name not in allowed:
            fields.refuse(name, f"none but {', '.join(allowed)}")


def _check_length(fields: Fields, name: str, text: str) -> None:
    if len(text) > _MOST_TEXT:
        fields.refuse(name, f"at most {_MOST_TEXT} characters")


def _check_brokers(fields: Fields, name: str, brokers: tuple[str, ...]) -> None:
    if len(brokers) > MOST_BROKERS:
        fields.refuse(name, f"at most {MOST_BROKERS} brokers")
    for broker in brokers:
        try:
            parse_broker(broker)
        except InvalidName as error:
            fields.refuse(name, f"names of brokers: {error}")
