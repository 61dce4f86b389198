"""Reads JSON objects in znodes and files field by field, with precise errors.

A record is declared once: a `Form` follows from its dataclass. Each field is written under its name
in camel case and read with the checks of `Fields`, by its type; `At` says what differs.

Large objects may be compressed: plain JSON, zlib and gzip are distinguished by their first
bytes.
"""

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from enum import StrEnum
from functools import partial
from types import UnionType
from typing import (
    Any,
    Final,
    Generic,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from loadmanager.core.bounds import COUNT, RATE, Bound
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    parse_broker,
    parse_bundle,
    parse_namespace,
)

OURS: Final = "loadmanager"
"""The nested object for the fields that we add to Pulsar's documents."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")

_SHOWN: Final = 80
_COMPRESS_ABOVE_BYTES: Final = 4096
_LEVEL: Final = 3
"""With the loads of 20,000 bundles four times faster than zlib's default 6, and 5 % larger."""
_EITHER: Final = 47  # zlib's largest window; zlib or gzip is detected from the header.


class Fields:
    """One JSON object, read with checks; ``prefix`` is its path in the document, as ``"cpu."``.

    Every reading method raises `MalformedContent` naming the field, what was found
    there and what was expected. An absent or null field has the default value; without a default
    it is an error.
    """

    def __init__(self, where: str, found: Mapping[str, Any], prefix: str = "") -> None:
        self._where = where
        self._found = found
        self._prefix = prefix

    def refuse(self, name: str, expected: str) -> NoReturn:
        if name in self._found:
            found = f"{self._prefix}{name} = {_shown(self._found[name])}"
        else:
            found = f"{self._prefix}{name} is missing"
        raise MalformedContent(self._where, found, expected)

    def names(self) -> tuple[str, ...]:
        return tuple(self._found)

    def values(self) -> Mapping[str, Any]:
        return self._found

    def text(self, name: str, default: str | None = None) -> str:
        value = self._found.get(name)
        if value is None and default is not None:
            return default
        if not isinstance(value, str) or not is_unicode(value):
            self.refuse(name, "text")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        value = self._found.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.refuse(name, "true or false")
        return value

    def rate(self, name: str, default: float = 0.0, bound: Bound = RATE) -> float:
        value = self._found.get(name)
        if type(value) is float and bound.least <= value <= bound.most:
            return value
        if value is None:
            return default
        if not bound.holds(value):
            self.refuse(name, bound.expected)
        return float(value)

    def count(self, name: str, default: int | None = 0, bound: Bound = COUNT) -> int:
        value = self._found.get(name)
        if value is None and default is not None:
            return default
        if type(value) is not int or not bound.holds(value):
            self.refuse(name, bound.expected)
        return value

    def inner(self, name: str) -> "Fields":
        """Return the object in a field; an absent one is empty."""
        value = self._found.get(name)
        if value is None:
            value = {}
        if not isinstance(value, dict):
            self.refuse(name, "an object")
        return Fields(self._where, value, f"{self._prefix}{name}.")

    def parsed(self, name: str, parse: Callable[[str], _Value]) -> _Value:
        text = self.text(name)
        try:
            return parse(text)
        except InvalidName as problem:
            self.refuse(name, problem.expected)

    def mapped(
        self, name: str, parse: Callable[[str], _Key], read: Callable[["Fields", str], _Value]
    ) -> Mapping[_Key, _Value]:
        """Return the object in a field: its names parsed, each value as ``read`` returns it."""
        inner = self.inner(name)
        keys = inner.keys(inner.names(), parse)
        return {key: read(inner, name) for key, name in zip(keys, inner.names(), strict=True)}

    def keys(self, names: Iterable[str], parse: Callable[[str], _Key]) -> list[_Key]:
        found, name = list[_Key](), ""
        try:
            for name in names:
                found.append(parse(name))
        except InvalidName as problem:
            what = f"{self._prefix}{_shown(name)}"
            raise MalformedContent(self._where, what, problem.expected) from None
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return a list of texts; an absent one is empty."""
        value = self._found.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(
            isinstance(item, str) and is_unicode(item) for item in value
        ):
            self.refuse(name, "a list of texts")
        return tuple(value)

    def parsed_texts(self, name: str, parse: Callable[[str], _Value]) -> tuple[_Value, ...]:
        try:
            return tuple(parse(text) for text in self.texts(name))
        except InvalidName as problem:
            self.refuse(name, problem.expected)

    def rates(self, name: str, length: int | None = None, bound: Bound = RATE) -> tuple[float, ...]:
        """Return a list of finite numbers within ``bound``, ``length`` of them if given."""
        values = self._list(name, length)
        if bound.surely_hold(values):
            return tuple(map(float, values))
        items = self._items(name, values)
        return tuple(items.rate(position, bound=bound) for position in items.names())

    def counts(self, name: str, length: int | None = None, bound: Bound = COUNT) -> tuple[int, ...]:
        """Return a list of whole numbers within ``bound``, ``length`` of them if given."""
        values = self._list(name, length)
        if bound.whole and bound.surely_hold(values):
            return tuple(values)
        items = self._items(name, values)
        return tuple(items.count(position, bound=bound) for position in items.names())

    def _list(self, name: str, length: int | None) -> list[Any]:
        value = self._found.get(name)
        if not isinstance(value, list) or length not in {None, len(value)}:
            self.refuse(name, "a list of numbers" if length is None else f"{length} numbers")
        return value

    def _items(self, name: str, values: list[Any]) -> "Fields":
        named = {str(position): item for position, item in enumerate(values)}
        return Fields(self._where, named, f"{self._prefix}{name}.")


def parse_object(where: str, data: bytes) -> dict[str, Any]:
    """Raises `MalformedContent`: no UTF-8, no JSON, no object, or with NaN or an infinity."""

    def no_constant(text: str) -> NoReturn:
        raise MalformedContent(where, text, "a finite number")

    return _parsed(where, data, parse_constant=no_constant)


def parse_snapshot(where: str, data: bytes) -> dict[str, Any]:
    """Return the JSON object in ``data``, in which no object may have a name twice.

    It may contain NaN, which is refused where a number is expected. Raises as `parse_object`.
    """

    def without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise MalformedContent(where, f"{_shown(twice)} twice in an object", "it once")
        return found

    return _parsed(where, data, object_pairs_hook=without_repetition)


def _parsed(where: str, data: bytes, **hooks: Any) -> dict[str, Any]:
    try:
        found = json.loads(data.decode(), **hooks)
    except (UnicodeDecodeError, json.JSONDecodeError) as problem:
        raise MalformedContent(where, str(problem), "a JSON object in UTF-8") from None
    except MalformedContent:
        raise
    except (ValueError, RecursionError):
        # A number with thousands of digits, or brackets nested too deeply.
        raise MalformedContent(where, _shown(data), "JSON of a sane size and depth") from None
    if not isinstance(found, dict):
        raise MalformedContent(where, _shown(found), "a JSON object")
    return found


def parse_fields(where: str, data: bytes) -> Fields:
    return Fields(where, parse_object(where, data))


def to_json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), allow_nan=False).encode()


def packed(text: bytes) -> bytes:
    return zlib.compress(text, _LEVEL) if len(text) > _COMPRESS_ABOVE_BYTES else text


def unpacked_object(where: str, data: bytes, most_bytes: int) -> dict[str, Any]:
    """Raises `MalformedContent`: neither plain nor compressed, or above ``most_bytes`` unpacked."""
    text = data
    if not data.lstrip().startswith(b"{"):
        inflater = zlib.decompressobj(wbits=_EITHER)
        try:
            text = inflater.decompress(data, most_bytes + 1)
        except zlib.error:
            raise MalformedContent(where, f"{data[:40]!r}", "JSON, plain, zlib or gzip") from None
        if not inflater.eof and len(text) <= most_bytes:
            raise MalformedContent(where, "a compressed text that is cut off", "a whole one")
    if len(text) > most_bytes:
        raise MalformedContent(where, f"more than {most_bytes} bytes", f"at most {most_bytes}")
    return parse_object(where, text)


def is_unicode(text: str) -> bool:
    """Return whether a text can be written as UTF-8: JSON can escape half of a surrogate pair."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


T = TypeVar("T")

Read = Callable[[Any, str], Any]
"""Reads a field of `Fields`, or of those that a form is read from."""

_NAMES: Final[Mapping[Any, Callable[[str], Any]]] = {
    BrokerId: parse_broker,
    BundleId: parse_bundle,
    Namespace: parse_namespace,
    str: str,
}
NEVER: Final = object()
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
    omitted: Any = NEVER
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
            if one.omitted is NEVER or value != one.omitted:
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
        float: partial(Fields.rate, default=absent or 0.0, bound=bound or RATE),
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
    return None if found.values().get(name) is None else read(found, name)


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
