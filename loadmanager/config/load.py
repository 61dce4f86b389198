"""Reading a configuration and reporting all its faults at once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadmanager.config.balancing import PlacementSettings, SheddingSettings
from loadmanager.config.describe import KeyDescription, as_toml, describe, keys_of
from loadmanager.config.errors import ConfigError
from loadmanager.config.forms import ShadowSettings
from loadmanager.config.model import Config, Contradiction
from loadmanager.config.sources import Given, Setting, gather
from loadmanager.config.strategies import (
    go_together,
    make_placement,
    make_shadow,
    make_shedder,
    not_together,
    strategy_named,
)
from loadmanager.core.hosts import unreachable
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.shedding import SHEDDERS, JointShedder

_Key = tuple[str, str]
_Settings = Mapping[_Key, Setting]


def load_config(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Config:
    """Return the settings of the file, under those of the environment, under ``overrides``.

    Args:
        path: a TOML file, or None for no file.
        environ: variables ``LOADMANAGER_<SECTION>__<KEY>`` count, others do not.
        overrides: ``section.key=value`` each, as given to ``--set``.

    Raises:
        ConfigError: any source has a fault; it reports all faults of all sources.
    """
    return checked(gather(path, environ, overrides))


def check_config(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Config:
    """Return the settings as `load_config` does, if a sidecar becomes ready with them.

    One that advertises a URL which other hosts cannot reach starts, for it may be alone,
    and does not become ready.

    Raises:
        ConfigError: as `load_config`.
    """
    given = gather(path, environ, overrides)
    config, faults = _check(given.settings)
    faults = [*given.faults, *faults, *_unreachable(given.settings)]
    if config is None or faults:
        raise ConfigError(faults)
    return config


def checked(given: Given) -> Config:
    """Return the configuration that was given.

    Raises:
        ConfigError: it has a fault, or was not to be read; it reports all faults.
    """
    config, faults = _check(given.settings)
    if config is None or given.faults or faults:
        raise ConfigError([*given.faults, *faults])
    return config


def _unreachable(settings: _Settings) -> list[str]:
    """Return why other hosts could not reach the sidecar, whatever else is wrong."""
    sections = ("broker", "sidecar", "security", "tls")
    try:
        config = Config.model_validate(
            _nested({at: one for at, one in settings.items() if at[0] in sections})
        )
    except ValidationError:
        return []  # One of these keys is wrong itself, and reported.
    why = unreachable(config.sidecar.advertised_url, [config.broker.id])
    return [why] if why else []


def _check(settings: _Settings) -> tuple[Config | None, list[str]]:
    """Return the configuration, or the faults of single keys and of keys together.

    Keys together are only checked by pydantic when each key alone is right. So the
    faulty ones are set aside and the rest is checked again with defaults in their place.
    """
    try:
        config = Config.model_validate(_nested(settings))
    except ValidationError as error:
        faults = _faults_by_key(settings, error)
        faults_found = _told_contradictions(settings, error, frozenset())
    else:
        unknown = _strategy_faults(settings, ())
        return (None if unknown else config), unknown
    if faults:
        sound = {at: setting for at, setting in settings.items() if at not in faults}
        faults_found = _contradictions_among(sound, frozenset(faults))
    return None, [*faults.values(), *faults_found, *_strategy_faults(settings, faults)]


def _strategy_faults(settings: _Settings, faulty: Collection[_Key]) -> list[str]:
    """Return the strategies and settings of strategies that do not exist."""
    found: list[str] = []
    shedder = _shedder_of(settings)
    for section, known, make in (
        ("shedding", SHEDDERS, lambda values: make_shedder(SheddingSettings(**values))),
        (
            "placement",
            PLACEMENTS,
            lambda values: make_placement(PlacementSettings(**values), shedder),
        ),
    ):
        keys = {(section, "strategy"), (section, "settings")}
        if keys.isdisjoint(faulty):
            try:
                if (named := settings.get((section, "strategy"))) is not None:
                    strategy_named(known, str(named.value), named.place)
                make({at[1]: settings[at].value for at in keys & settings.keys()})
            except ConfigError as error:
                found += error.faults
    if ("shedding", "shadows") not in faulty:
        found += _shadow_faults(settings)
    return found or _faults_together(settings)


def _shadow_faults(settings: _Settings) -> list[str]:
    """Return the settings of strategies beside the active one that do not exist."""
    given = settings.get(("shedding", "shadows"))
    found: list[str] = []
    shadows = () if given is None else given.value
    for one in SheddingSettings.model_validate({"shadows": shadows}).shadows:
        try:
            make_shadow(ShadowSettings.of(one))
        except ConfigError as error:
            found += error.faults
    return found


def _faults_together(settings: _Settings) -> list[str]:
    """Return the fault of two strategies that exist and do not go together."""
    placement, shedder = settings.get(("placement", "strategy")), _shedder_of(settings)
    if placement is None or go_together(shedder, PLACEMENTS[str(placement.value)]):
        return []
    text = f"{placement.place}; expected {not_together(shedder)}"
    if shedder is JointShedder and ("shedding", "strategy") not in settings:
        text += ", and is the default; others take a placement: [shedding] strategy = 'AvgShedder'"
    return [text]


def _shedder_of(settings: _Settings) -> type:
    """Return the shedder that is named or the default; the latter too where there is none such."""
    usual = SheddingSettings().strategy
    named = settings.get(("shedding", "strategy"))
    return SHEDDERS.get(str(usual if named is None else named.value), SHEDDERS[usual])


def _nested(settings: _Settings) -> dict[str, dict[str, Any]]:
    # Every section is there, so that a missing required key is reported as such.
    nested: dict[str, dict[str, Any]] = {known.section: {} for known in describe()}
    for (section, key), setting in settings.items():
        nested[section][key] = setting.value
    return nested


def _contradictions_among(settings: _Settings, faulty: frozenset[_Key]) -> list[str]:
    examples = {
        (k.section, k.key): Setting(k.example, "an example")
        for k in describe()
        if k.required and (k.section, k.key) not in settings
    }
    try:
        Config.model_validate(_nested({**settings, **examples}))
    except ValidationError as error:
        return _told_contradictions(settings, error, faulty)
    return []


def _faults_by_key(settings: _Settings, error: ValidationError) -> dict[_Key, str]:
    faults = {}
    for one in error.errors(include_url=False, include_input=False):
        if len(one["loc"]) > 1:
            section, key = str(one["loc"][0]), str(one["loc"][1])
            faults[section, key] = _fault(settings.get((section, key)), keys_of(section)[key])
    return faults


def _fault(setting: Setting | None, known: KeyDescription) -> str:
    if setting is None:
        where = f"[{known.section}] {known.key} is not set (in a file, or as {known.variable})"
        return f"{where}; expected {known.expected}"
    return f"{setting.place}; expected {known.expected}"


def _told_contradictions(
    settings: _Settings, error: ValidationError, faulty: Iterable[_Key]
) -> list[str]:
    """Return the contradictions as texts, but for those that come of a faulty key."""
    found: list[Contradiction] = [
        one
        for faults_found in error.errors(include_url=False, include_input=False)
        for one in faults_found.get("ctx", {}).get("contradictions", ())
    ]
    return [
        f"{_place(settings, one)}; expected {one.expected}"
        for one in found
        if not {(one.section, one.key), *one.because} & set(faulty)
    ]


def _place(settings: _Settings, one: Contradiction) -> str:
    """Return where the key was set; if it was not, where the key was that it must go with."""
    if (setting := settings.get((one.section, one.key))) is not None:
        return setting.place
    default = keys_of(one.section)[one.key].default
    unset = (
        f"default [{one.section}] {one.key} = {as_toml(default)}"
        if default
        else f"[{one.section}] {one.key} is not set"
    )
    causes = [settings[at].place for at in one.because if at in settings]
    return f"{unset} (with {', '.join(causes)})" if causes else unset
