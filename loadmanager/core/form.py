"""Records as JSON objects, declared once for writing and reading.

A `Form` follows from a dataclass: each field is written under its name in camel case and read
with the checks of `Fields`, by its type. `At` says what differs for a field.
"""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import partial
from types import UnionType
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from loadmanager.core.bounds import COUNT, RATE, Bound
from loadmanager.core.fields import Fields, parse_fields, to_json
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    parse_broker,
    parse_bundle,
    parse_namespace,
)

T = TypeVar("T")

Read = Callable[[Any, str], Any]
"""Reads a field of `Fields`, or of those that a form is read from."""

_NAMES: Final[Mapping[Any, Callable[[str], Any]]] = {
    BrokerId: parse_broker,
    BundleId: parse_bundle,
    Namespace: parse_namespace,
    str: str,
}
_NEVER: Final = object()
SPREAD: Final = "*"


@dataclass(frozen=True, slots=True, kw_only=True)
class At:
    """How one field is written, where that does not follow from its name and type.

    The name `SPREAD` is for an object whose fields are written among the others. ``inside`` is the
    nested object that has the field. ``bound`` is that of its figures. An absent field has the
    default of the dataclass, or else ``absent``; with None it is refused. The value ``omitted`` is
    not written. ``read`` and ``write`` replace what follows from its type.
    """

    name: str = ""
    inside: str = ""
    bound: Bound | None = None
    absent: Any = None
    omitted: Any = _NEVER
    read: Read | None = None
    write: Callable[[Any], Any] | None = None


class _Entry(NamedTuple):
    attribute: str
    name: str
    inside: str
    read: Read
    write: Callable[[Any], Any]
    omitted: Any


class Form(Generic[T]):
    """The JSON object of a dataclass, with its fields in their order; None stands for none."""

    def __init__(self, kind: Callable[..., T], **differing: At | None) -> None:
        declared = {one.name: one for one in fields(kind)}  # type: ignore[arg-type]
        hints = get_type_hints(kind)
        self._make = kind
        self._entries: list[_Entry] = []
        for attribute, one in declared.items():
            at = differing.get(attribute, At())
            if at is None:
                continue
            absent = at.absent if one.default is MISSING else one.default
            read = at.read or _reader(hints[attribute], at.bound, absent)
            name = at.name or _camel_case(attribute)
            write = at.write or _written
            self._entries.append(_Entry(attribute, name, at.inside, read, write, at.omitted))

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self._entries)

    def to_json(self, record: T) -> dict[str, Any]:
        document: dict[str, Any] = {}
        for one in self._entries:
            value = getattr(record, one.attribute)
            if one.omitted is _NEVER or value != one.omitted:
                within = document.setdefault(one.inside, {}) if one.inside else document
                if one.name == SPREAD:
                    within.update(one.write(value))
                else:
                    within[one.name] = one.write(value)
        return document

    def read(self, found: Fields) -> T:
        """Raises `MalformedContent`, as all that read."""
        return self._make(
            **{
                one.attribute: one.read(found.inner(one.inside) if one.inside else found, one.name)
                for one in self._entries
            }
        )

    def inner(self, found: Fields, name: str) -> T:
        return self.read(found.inner(name))

    def at(self, name: str = "") -> At:
        """Return that a field has such an object."""
        return At(name=name, read=self.inner, write=self.to_json)

    def encode(self, record: T) -> bytes:
        return to_json(self.to_json(record))

    def decode(self, where: str, data: bytes) -> T:
        return self.read(parse_fields(where, data))


def _reader(kind: Any, bound: Bound | None, absent: Any) -> Read:
    """Return how a value of a type is read; absent ones are refused if ``absent`` is None."""
    plain: dict[Any, Read] = {
        str: partial(Fields.text, default=absent),
        bool: partial(Fields.flag, default=absent),
        int: partial(Fields.count, default=absent, bound=bound or COUNT),
        float: partial(Fields.rate, bound=bound or RATE),
    }
    parts, origin = get_args(kind), get_origin(kind)
    if kind in plain:
        return plain[kind]
    if kind in _NAMES:
        return partial(Fields.parsed, parse=_NAMES[kind])
    if origin in {Union, UnionType}:  # with None
        return partial(_optional, _reader(parts[0], bound, None))
    if origin is Mapping:
        value = _reader(parts[1], bound, 0 if parts[1] is int else None)
        return partial(Fields.mapped, parse=_NAMES[parts[0]], read=value)
    if origin in {tuple, frozenset}:
        return partial(_collected, origin, _NAMES[parts[0]])
    return partial(_choice, kind)


def _optional(read: Read, found: Fields, name: str) -> Any:
    return read(found, name) if name in found.values() else None


def _collected(
    kind: type, parse: Callable[[str], Any], found: Fields, name: str
) -> tuple[Any, ...] | frozenset[Any]:
    values: tuple[Any, ...] | frozenset[Any] = kind(found.parsed_texts(name, parse))
    return values


def _choice(kind: type[StrEnum], found: Fields, name: str) -> StrEnum:
    text = found.text(name)
    if text not in set(kind):
        found.refuse(name, " or ".join(kind))
    return kind(text)


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _written(one) for key, one in value.items()}
    if isinstance(value, tuple):
        return list(value)
    return sorted(value) if isinstance(value, frozenset) else value


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(one.capitalize() for one in others)
