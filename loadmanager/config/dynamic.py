"""Settings changed for the whole cluster while it runs, on top of each sidecar's own.

They are texts by name, as Pulsar keeps its dynamic configuration. A name is one of
ours, ``leader.round_interval_s`` or ``shedding.settings.threshold``, or one of Pulsar's,
in Pulsar's unit.
"""

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from loadmanager.config.describe import KeyDescription, describe, keys_of
from loadmanager.config.forms import ConfigError, plain_value
from loadmanager.config.load import GivenSettings, checked, put_text
from loadmanager.config.model import Config
from loadmanager.config.pulsar_import import DEPLOYMENT, MISSPELT, TRANSLATED, UNUSED, sections_with
from loadmanager.config.strategies import KINDS, STRATEGIES, fields_of


class NotDynamic(ConfigError):
    """A name that cannot be set while the sidecars run, or is none at all."""


class Overridden(NamedTuple):
    """A configuration with overrides; ``faults`` has the reason for each one that is left out."""

    config: Config
    faults: Mapping[str, str]


def dynamic_names() -> tuple[str, ...]:
    """Return every name that can be set: ours, then Pulsar's."""
    ours = tuple(f"{known.section}.{known.key}" for known in describe() if known.dynamic)
    return ours + tuple(sorted(_names_of_pulsar()))


def override(config: Config, overrides: Mapping[str, str]) -> Overridden:
    """Return ``config`` with all overrides that can be taken in together.

    One that is wrong in itself or contradicts the rest is left out and reported; it stops no
    other. What was set first in the order of names counts first.
    """
    try:
        return Overridden(with_overrides(config, overrides), {})
    except ConfigError:
        pass
    taken: dict[str, str] = {}
    faults: dict[str, str] = {}
    # What is refused alone may go with what comes after it, as a placement with its shedder.
    for name in [*sorted(overrides), *sorted(overrides)]:
        if name not in taken:
            try:
                with_overrides(config, {**taken, name: overrides[name]})
            except ConfigError as error:
                faults[name] = "; ".join(error.faults)
            else:
                taken[name] = overrides[name]
    left_out = {name: why for name, why in faults.items() if name not in taken}
    return Overridden(with_overrides(config, taken), left_out)


def with_overrides(config: Config, overrides: Mapping[str, str]) -> Config:
    """Return ``config`` with every one of ``overrides``.

    Raises `NotDynamic`: a name cannot be set while the sidecars run; `ConfigError`: a value is none
    for its name, or contradicts another one.
    """
    given = _given_by(config)
    # A strategy goes before the settings of strategies.
    chosen = {name for name in overrides if name in TRANSLATED or name.endswith(".strategy")}
    for name in [*sorted(chosen), *sorted(overrides.keys() - chosen)]:
        _put(given, name, overrides[name])
    return checked(given)


def _given_by(config: Config) -> GivenSettings:
    given = GivenSettings()
    for known in describe():
        section = getattr(config, known.section)
        value = getattr(section, known.key)
        if known.key in section.model_fields_set and value is not None:
            given.put(known, value, f"[{known.section}] {known.key}")
    return given


def _put(given: GivenSettings, name: str, text: str) -> None:
    known, subkey = _named(name)
    place = f"{name}={text}"
    if known is not None and known.dynamic:
        names = [known.section, known.key, *([subkey] if subkey else [])]
        _begin_anew(given, known, text)
        put_text(given, names, text, f"{name}=")
    elif name in TRANSLATED and name in _names_of_pulsar():
        read, ours = TRANSLATED[name]
        for target in ours:
            _begin_anew(given, target, text)
            try:
                given.put(target, read(text), place)
            except ValueError as error:
                given.faults.append(f"{place}; {error}")
    elif name in _names_of_pulsar():
        chosen = {one: _value(given, keys_of(one)["strategy"]) for one in STRATEGIES}
        right = MISSPELT.get(name, name)
        for section in sections_with(right, chosen):
            given.put(keys_of(section)["settings"], plain_value(text), place, right)
    else:
        raise NotDynamic([f"{name}: not dynamic, {_why_not(name, known)}"])


def _why_not(name: str, known: KeyDescription | None) -> str:
    if name in UNUSED:
        return f"it means nothing here: {UNUSED[name]}"
    at_the_start = known is not None or name in TRANSLATED or name in DEPLOYMENT
    return "it is read when a sidecar starts" if at_the_start else "there is no such key"


def _begin_anew(given: GivenSettings, known: KeyDescription, text: str) -> None:
    """Drop the settings of a strategy that another one replaces."""
    if known.key == "strategy" and _value(given, known) != text.strip():
        given.put(keys_of(known.section)["settings"], {}, f"{known.section} = {text}")


def _value(given: GivenSettings, known: KeyDescription) -> str:
    found = given.settings.get((known.section, known.key))
    return str(known.default if found is None else found.value)


def _named(name: str) -> tuple[KeyDescription | None, str]:
    section, _, rest = name.partition(".")
    key, _, subkey = rest.partition(".")
    known = keys_of(section).get(key)
    return (None, "") if known is not None and subkey and known.kind != "table" else (known, subkey)


@cache
def _names_of_pulsar() -> frozenset[str]:
    translated = {
        name for name, (_, ours) in TRANSLATED.items() if all(known.dynamic for known in ours)
    }
    settings = {one.doc.pulsar_key for kind in KINDS for _, one in fields_of(kind).values()}
    return frozenset(translated | settings - {""} | MISSPELT.keys())
