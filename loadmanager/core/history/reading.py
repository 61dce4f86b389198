"""Reads lines of history strictly: every error names the place and the expected content."""

from collections.abc import Mapping
from typing import Any, Final, cast

from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import Fields, is_unicode, parse_fields
from loadmanager.core.history.schema import BOUNDS, ENVELOPE, KINDS, VERSION, Columns, Field, Type

_WORDS: Final[Mapping[Type, str]] = {
    Type.TEXT: "text",
    Type.FLAG: "true or false",
    **{kind: bound.expected for kind, bound in BOUNDS.items()},
}


def read_line(where: str, line: bytes) -> Mapping[str, Any]:
    """Return the fields of a line; ``where`` names file and line in messages.

    Unknown fields are kept: later writers may add some.
    """
    fields = parse_fields(where, line)
    if fields.count("schema", None) != VERSION:
        fields.refuse("schema", f"{VERSION}, the version this program reads")
    kind = KINDS.get(fields.text("kind"))
    if kind is None:
        fields.refuse("kind", f"one of {', '.join(KINDS)}")
    values = dict(fields.values())
    for name in kind.added:
        values.setdefault(name, None)
    for known in (*ENVELOPE, *kind.fields):
        if isinstance(known, Columns):
            _check_columns(where, fields, known)
        elif known.listed:
            _check_list(where, fields, known)
        elif known.name not in values or not _fits(values[known.name], known):
            fields.refuse(known.name, _expected(known))
    return values


def _check_columns(where: str, fields: Fields, known: Columns) -> None:
    if known.name not in fields.values():
        fields.refuse(known.name, "an object of lists of one length")
    inner, path = fields.inner(known.name), f"{known.name}."
    for column in known.fields:
        _check_list(where, inner, column, path)
    lengths = {len(inner.values()[column.name]) for column in known.fields}
    if len(lengths) > 1:
        found = " and ".join(str(length) for length in sorted(lengths))
        raise MalformedContent(
            where, f"{known.name} has lists of {found} items", "lists of one length"
        )


def _check_list(where: str, fields: Fields, known: Field, path: str = "") -> None:
    value = fields.values().get(known.name)
    if not isinstance(value, list):
        fields.refuse(known.name, f"a list, of each {_expected(known)}")
    if _surely_fit(value, known.type):
        return
    for position, item in enumerate(value):
        if not _fits(item, known):
            named = f"{known.name}[{position}]"
            Fields(where, {named: item}, path).refuse(named, _expected(known))


def _surely_fit(values: list[object], kind: Type) -> bool:
    """Return whether all items certainly fit; one check of all is much faster than one of each."""
    if kind in BOUNDS:
        return BOUNDS[kind].surely_hold(values)
    found = set(map(type, values))
    if kind is Type.FLAG:
        return found <= {bool}
    return found <= {str} and "".join(cast("list[str]", values)).isascii()


def _expected(known: Field) -> str:
    return _WORDS[known.type] + (" or null" if known.nullable else "")


def _fits(value: object, known: Field) -> bool:
    if value is None:
        return known.nullable
    if known.type is Type.TEXT:
        return isinstance(value, str) and is_unicode(value)
    if known.type is Type.FLAG:
        return isinstance(value, bool)
    return BOUNDS[known.type].holds(value)
