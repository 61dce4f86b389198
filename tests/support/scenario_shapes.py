"""The values that the parts of a scenario accept, from their models, for the reference."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import get_args, get_origin

from annotated_types import MaxLen, MinLen
from pydantic.fields import FieldInfo

from loadmanager.config.describe import expected_of
from loadmanager.config.forms import Form, Section
from loadmanager.simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class Plain:
    """A text, a number, a switch. ``expected`` is worded to follow the word "expected"."""

    expected: str


@dataclass(frozen=True, slots=True)
class Free:
    pass


@dataclass(frozen=True, slots=True)
class Table:
    model: type[Section]


@dataclass(frozen=True, slots=True)
class Kinds:
    models: Mapping[str, type[Section]]


@dataclass(frozen=True, slots=True)
class Several:
    of: "Shape"


Shape = Plain | Free | Table | Kinds | Several


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a table. ``expected`` is worded to follow the word "expected"."""

    name: str
    shape: Shape
    field: FieldInfo
    expected: str

    @property
    def required(self) -> bool:
        """Whether there is no default: always for a kind, which says what the others mean."""
        return self.field.is_required() or self.name == "kind"


@cache
def keys_of(model: type[Section]) -> Mapping[str, Key]:
    # The header of a table that stands in others has their names before its own.
    outermost = model is Scenario
    return {name: _key(name, field, outermost) for name, field in model.model_fields.items()}


def _shape(field: FieldInfo) -> Shape:
    origin, inner = get_origin(field.annotation), get_args(field.annotation)
    if field.discriminator is not None:
        return Kinds({kind: model for model in inner for kind in _kinds(model)})
    if origin is tuple:
        return Several(_shape(FieldInfo.from_annotation(inner[0])))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return Free()
    if isinstance(field.annotation, type) and issubclass(field.annotation, Section):
        return Table(field.annotation)
    return Plain(expected_of(field))


def _kinds(model: type[Section]) -> tuple[str, ...]:
    return get_args(model.model_fields["kind"].annotation)


def _key(name: str, field: FieldInfo, outermost: bool) -> Key:
    shape = _shape(field)
    return Key(name, shape, field, _expected(name if outermost else "", shape, field))


def _expected(header: str, shape: Shape, field: FieldInfo) -> str:
    if isinstance(shape, Table | Kinds):
        return f"a table, [{header}]" if header else "a table, as { key = value }"
    if isinstance(shape, Several) and isinstance(shape.of, Table | Kinds):
        return f"[[{header}]] tables" if header else "a list of tables, as [{ key = value }]"
    if isinstance(shape, Several) and not any(isinstance(m, Form) for m in field.metadata):
        each = shape.of.expected if isinstance(shape.of, Plain) else "a list"
        return f"a list{_lengths(field)} of which each is {each}"
    return expected_of(field) + (_lengths(field) if isinstance(shape, Plain) else "")


def _lengths(field: FieldInfo) -> str:
    least = next((m.min_length for m in field.metadata if isinstance(m, MinLen)), 0)
    most = next((m.max_length for m in field.metadata if isinstance(m, MaxLen)), None)
    if most is not None:
        return f" of {least} to {most} characters"
    return " that is not empty," if least else ""
