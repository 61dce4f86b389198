"""From the names and settings of the configuration to strategies of the core.

A strategy's keys are the fields of its dataclass, under our name or Pulsar's; those of
a group of settings are written with the group's name before them (``weights_cpu``).
"""

import difflib
from collections.abc import Collection, Mapping
from enum import EnumType
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from loadmanager.config.balancing import PlacementSettings, SheddingSettings
from loadmanager.config.errors import ConfigError
from loadmanager.config.forms import SettingValue, ShadowSettings
from loadmanager.core.placement import PLACEMENTS, JointPlacement, Placement
from loadmanager.core.settings import Setting, SettingOutOfRange, groups_of, settings_of
from loadmanager.core.shedding import SHEDDERS, JointShedder, Shedder

T = TypeVar("T")

_KINDS: Final[Mapping[type, str]] = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
}


def make_shedder(settings: SheddingSettings) -> Shedder:
    """Raises `ConfigError`: no strategy has that name, or a setting is not one of its own."""
    return _make(SHEDDERS, settings.strategy, settings.settings, "shedding")


def make_shadow(shadow: ShadowSettings) -> Shedder:
    """Raises `ConfigError`: a setting is not one of the shedder's."""
    kind = SHEDDERS[shadow.strategy]
    return filled(kind, shadow.settings, f"[shedding] shadows, settings for {kind.__name__}")


def make_placement(settings: PlacementSettings, shedder: type) -> Placement:
    """Return the configured placement, or the shedder's own; raises as `make_shedder`."""
    name = own_placement(shedder) if settings.strategy is None else settings.strategy
    return _make(PLACEMENTS, name, settings.settings, "placement")


def placement_beside(shedder: type, settings: PlacementSettings) -> Placement:
    """Raises `ConfigError`: as `make_shedder`; or the two do not go together."""
    placement = make_placement(settings, shedder)
    if not go_together(shedder, type(placement)):
        where = f"[placement] strategy = {settings.strategy!r}"
        raise ConfigError([f"{where}; expected {not_together(shedder)}"])
    return placement


def own_placement(shedder: type) -> str:
    return "joint" if shedder is JointShedder else "AvgShedder"


def go_together(shedder: type, placement: type) -> bool:
    """Return whether two strategies may be chosen together: the joint one is both or neither."""
    return (shedder is JointShedder) == (placement is JointPlacement)


def not_together(shedder: type) -> str:
    """Return what would be expected of a placement that does not go with ``shedder``."""
    if shedder is JointShedder:
        return "none, or joint: [shedding] strategy = 'joint' places bundles itself"
    return "another: joint places bundles only where it is the [shedding] strategy, too"


def _make(
    known: Mapping[str, type[T]], name: str, given: Mapping[str, SettingValue], section: str
) -> T:
    kind = strategy_named(known, name, f"[{section}] strategy = {name!r}")
    where = f"[{section}.settings] for {kind.__name__}"
    return filled(kind, given, where)


def strategy_named(known: Mapping[str, type[T]], name: str, where: str) -> type[T]:
    """Raises `ConfigError`: there is none; it begins with ``where``, and names those there are."""
    if name not in known:
        short = sorted({known_name for known_name in known if "." not in known_name})
        raise ConfigError([f"{where}; expected one of {', '.join(short)}"])
    return known[name]


def _hint(kind: type, key: str, known: Collection[str]) -> str:
    table: Mapping[str, type] = PLACEMENTS if kind in PLACEMENTS.values() else SHEDDERS
    if having := {repr(one.__name__) for one in table.values() if key in fields_of(one)}:
        return f"expected with strategy = {' or '.join(sorted(having))}"
    close = difflib.get_close_matches(key, known, 1)
    if close:
        return f"did you mean {close[0]}?"
    return f"expected one of {', '.join(known)}" if known else "it has no settings"


def filled(kind: type[T], given: Mapping[str, SettingValue], where: str) -> T:
    """Raises `ConfigError`: a setting is unknown, or has a value that it cannot have."""
    fields = fields_of(kind)
    values: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {group: {} for group in groups_of(kind)}
    faults = []
    for key, value in given.items():
        if key not in fields:
            faults.append(f"{where}: {key} is unknown; {_hint(kind, key, fields)}")
            continue
        group, setting = fields[key]
        try:
            number = _typed(setting, key, value)
        except ValidationError:
            faults.append(f"{where}: {key} = {value!r}; expected {_expected(setting)}")
            continue
        (groups[group] if group else values)[setting.name] = number
    if faults:
        raise ConfigError(faults)
    try:
        made = {group: groups_of(kind)[group](**inner) for group, inner in groups.items()}
        return kind(**values, **made)
    except SettingOutOfRange as error:
        raise ConfigError([f"{where}: {error}"]) from error


def fields_of(kind: type) -> Mapping[str, tuple[str, Setting]]:
    found: dict[str, tuple[str, Setting]] = {}
    for group, inner in {"": kind, **groups_of(kind)}.items():
        for setting in settings_of(inner):
            found[f"{group}_{setting.name}" if group else setting.name] = (group, setting)
            if setting.doc.pulsar_key:
                found[setting.doc.pulsar_key] = (group, setting)
    return found


def _typed(setting: Setting, key: str, value: SettingValue) -> Any:
    # A list becomes a set, and a text one of a fixed choice; nothing else is converted.
    converted = isinstance(value, list) or isinstance(setting.kind, EnumType)
    typed: Any = TypeAdapter(setting.kind).validate_python(value, strict=not converted)
    under_pulsar_name = key == setting.doc.pulsar_key and setting.doc.pulsar_divisor != 1.0
    return typed / setting.doc.pulsar_divisor if under_pulsar_name else typed


def _expected(setting: Setting) -> str:
    if isinstance(setting.kind, EnumType):
        choices: list[Any] = list(setting.kind)
        return "one of " + ", ".join(str(choice) for choice in choices)
    return _KINDS.get(setting.kind, "a list of texts")
