"""From the names and settings of the configuration to strategies of the core.

A strategy's keys are the fields of its dataclass, under our name or Pulsar's; those of
a group of settings are written with the group's name before them (``weights_cpu``).
"""

import difflib
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from loadmanager.config.balancing import PlacementSettings, SheddingSettings
from loadmanager.config.errors import ConfigError
from loadmanager.config.forms import SettingValue
from loadmanager.core.placement import PLACEMENTS, Placement
from loadmanager.core.settings import Setting, SettingOutOfRange, groups_of, settings_of
from loadmanager.core.shedding import SHEDDERS, Shedder

T = TypeVar("T")


def make_shedder(settings: SheddingSettings) -> Shedder:
    """Return the configured shedder.

    Raises:
        ConfigError: no strategy has that name, or a setting is not one of its own.
    """
    return _make(SHEDDERS, settings.strategy, settings.settings, "shedding")


def make_placement(settings: PlacementSettings) -> Placement:
    """Return the configured placement; raises as `make_shedder`."""
    return _make(PLACEMENTS, settings.strategy, settings.settings, "placement")


def _make(
    known: Mapping[str, type[T]], name: str, given: Mapping[str, SettingValue], section: str
) -> T:
    kind = known.get(name)
    if kind is None:
        short = sorted({known_name for known_name in known if "." not in known_name})
        raise ConfigError([f"[{section}] strategy = {name!r}; expected one of {', '.join(short)}"])
    where = f"[{section}.settings] for {kind.__name__}"
    return _filled(kind, given, where)


def _filled(kind: type[T], given: Mapping[str, SettingValue], where: str) -> T:
    """Return a ``kind`` with the given settings, its groups filled from theirs."""
    fields = _fields(kind)
    values: dict[str, Any] = {}
    groups: dict[str, dict[str, Any]] = {group: {} for group in groups_of(kind)}
    faults = []
    for key, value in given.items():
        if key not in fields:
            close = difflib.get_close_matches(key, fields, 1)
            hint = f"did you mean {close[0]}?" if close else "expected one of " + ", ".join(fields)
            faults.append(f"{where}: {key} is unknown; {hint}")
            continue
        group, setting = fields[key]
        try:
            number = _typed(setting, key, value)
        except ValidationError:
            expected = getattr(setting.kind, "__name__", str(setting.kind))
            faults.append(f"{where}: {key} = {value!r}; expected {expected}")
            continue
        (groups[group] if group else values)[setting.name] = number
    if faults:
        raise ConfigError(faults)
    try:
        made = {group: groups_of(kind)[group](**inner) for group, inner in groups.items()}
        return kind(**values, **made)
    except SettingOutOfRange as error:
        raise ConfigError([f"{where}: {error}"]) from error


def _fields(kind: type) -> Mapping[str, tuple[str, Setting]]:
    """Return every accepted key with the group and the setting it stands for."""
    found: dict[str, tuple[str, Setting]] = {}
    for setting in settings_of(kind):
        found[setting.name] = ("", setting)
        if setting.doc.pulsar_key:
            found[setting.doc.pulsar_key] = ("", setting)
    for group, inner in groups_of(kind).items():
        for setting in settings_of(inner):
            found[f"{group}_{setting.name}"] = (group, setting)
            if setting.doc.pulsar_key:
                found[setting.doc.pulsar_key] = (group, setting)
    return found


def _typed(setting: Setting, key: str, value: SettingValue) -> Any:
    typed: Any = TypeAdapter(setting.kind).validate_python(
        value, strict=not isinstance(value, list)
    )
    under_pulsar_name = key == setting.doc.pulsar_key and setting.doc.pulsar_divisor != 1.0
    return typed / setting.doc.pulsar_divisor if under_pulsar_name else typed
