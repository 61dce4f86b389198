"""The settings of a planner as plain values, to show what was run."""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum

from loadmanager.core.planner import Planner

_PARTS = ("shedder", "placement", "settings", "weights", "filters")


def settings_of(planner: Planner) -> Mapping[str, object]:
    """Return ``part.name`` of each setting with its value, in an order that never changes."""
    return {
        f"{part}.{name}": value
        for part in _PARTS
        for name, value in _flat("", getattr(planner, part))
    }


def _flat(prefix: str, value: object) -> Iterator[tuple[str, object]]:
    if is_dataclass(value):
        for field in fields(value):
            name = f"{prefix}.{field.name}" if prefix else field.name
            yield from _flat(name, getattr(value, field.name))
    else:
        yield prefix, _plain(value)


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, frozenset):
        return sorted(str(one) for one in value)
    return value if isinstance(value, bool | int | float) or value is None else str(value)
