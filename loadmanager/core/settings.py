"""Self-describing settings: dataclass fields with a range, a unit and an effect.

Every strategy is a frozen dataclass whose fields are its settings. Each field is declared by
`setting`, with its range and a `Doc`; the configuration file, its reference and the reading of
Pulsar's own keys are all derived from these.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, get_type_hints

from loadmanager.core.errors import LoadManagerError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Doc:
    """Description of a setting, with Pulsar's name for it.

    ``pulsar_divisor`` turns Pulsar's unit into ours: a threshold of 85 percent divided
    by 100 is our fraction 0.85.
    """

    effect: str
    unit: str = ""
    pulsar_key: str = ""
    pulsar_divisor: float = 1.0


@dataclass(frozen=True, slots=True)
class Setting:
    name: str
    kind: type
    default: object
    least: float | None
    most: float | None
    doc: Doc


class SettingOutOfRange(LoadManagerError, ValueError):
    """A strategy was created with a value outside its range."""

    def __init__(self, owner: str, name: str, value: object, expected: str) -> None:
        super().__init__(f"{owner}.{name} = {value!r}; expected {expected}")
        self.name = name


def setting(
    effect: str,
    unit: str = "",
    pulsar_key: str = "",
    *,
    default: T,
    within: tuple[float | None, float | None] = (None, None),
    pulsar_divisor: float = 1.0,
) -> T:
    """Return the field of a setting; ``within`` is its inclusive range, the rest as in `Doc`."""
    doc = Doc(effect, unit, pulsar_key, pulsar_divisor)
    limits = [None if limit is None else float(limit) for limit in within]
    declared: T = field(default=default, metadata={"doc": doc, "within": limits})
    return declared


class Settings:
    """Base of dataclasses of settings: none is created with a number outside its range."""

    __slots__ = ()

    def __post_init__(self) -> None:
        for one in settings_of(type(self)):
            number = getattr(self, one.name)
            if not isinstance(number, int | float):
                continue
            low = one.least if one.least is not None else float("-inf")
            high = one.most if one.most is not None else float("inf")
            if not low <= number <= high:
                expected = f"{one.doc.unit} from {low} to {high}".strip()
                raise SettingOutOfRange(type(self).__name__, one.name, number, expected)


def settings_of(kind: type) -> tuple[Setting, ...]:
    """Return the described fields of a dataclass, in their order; nested groups are left out."""
    return _described(kind)


@cache
def _described(kind: type) -> tuple[Setting, ...]:
    hints = get_type_hints(kind)
    found = []
    for one in fields(kind):
        if "doc" in one.metadata:
            least, most = one.metadata["within"]
            found.append(
                Setting(one.name, hints[one.name], one.default, least, most, one.metadata["doc"])
            )
    return tuple(found)


def groups_of(kind: type) -> Mapping[str, type]:
    hints = get_type_hints(kind)
    return {spec.name: hints[spec.name] for spec in fields(kind) if is_dataclass(hints[spec.name])}


def values_of(value: object) -> dict[str, Any]:
    """Return the values of a settings dataclass as plain values by configuration key.

    The keys are those of the configuration: the fields of a group are prefixed with the group's
    name (``weights_cpu``).
    """
    kind = type(value)
    found = {setting.name: _plain(getattr(value, setting.name)) for setting in settings_of(kind)}
    for group in groups_of(kind):
        inner = values_of(getattr(value, group))
        found |= {f"{group}_{name}": one for name, one in inner.items()}
    return found


def with_arithmetic(value: T, *, like_java: bool) -> T:
    """Return a strategy, or other settings, with or without Pulsar's accidents.

    This sets the field ``like_java`` of the value and of its groups; anything without that field
    behaves the same in both modes. ``docs/accidents.md`` lists the accidents.
    """
    if not is_dataclass(value) or isinstance(value, type):
        return value
    found = {spec.name: getattr(value, spec.name) for spec in fields(value)}
    changed = {name: with_arithmetic(one, like_java=like_java) for name, one in found.items()}
    if "like_java" in changed:
        changed["like_java"] = like_java
    changed = {name: one for name, one in changed.items() if one is not found[name]}
    return replace(value, **changed) if changed else value


def _plain(value: Any) -> Any:
    if isinstance(value, frozenset):
        return sorted(value)
    return str(value) if isinstance(value, str) else value
