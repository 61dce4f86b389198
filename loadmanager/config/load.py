from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loadmanager.config.balancing import SheddingSettings
from loadmanager.config.describe import KeyDescription, as_toml, describe, keys_of
from loadmanager.config.errors import ConfigError, Contradiction
from loadmanager.config.forms import ShadowSettings
from loadmanager.config.model import CONTRADICTIONS_ALLOWED, Config, contradictions
from loadmanager.config.sources import GivenSettings, GivenValue, gather
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
_Settings = Mapping[_Key, GivenValue]


def load_config(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Config:
    """Return the settings of the file, under those of the environment, under ``overrides``.

    Args:
        path: a TOML file, or None for no file.
        environ: variables ``LOADMANAGER_<SECTION>__<KEY>`` count, others do not.
        overrides: ``section.key=value`` each, as given to ``--set``.

    Raises `ConfigError`: any source has a fault; it reports all faults of all sources.
    """
    return checked(gather(path, environ, overrides))


def check_config(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str] = ()
) -> Config:
    """Return the settings as `load_config` does, if a sidecar becomes ready with them.

    One that advertises a URL which other hosts cannot reach starts, for it may be alone, and does
    not become ready. Raises `ConfigError`: as `load_config`.
    """
    return checked(gather(path, environ, overrides), reachable=True)


def checked(given: GivenSettings, *, reachable: bool = False) -> Config:
    """Return the configuration that was given.

    ``reachable`` refuses an advertised URL that other hosts cannot reach. Raises `ConfigError`: it
    has a fault, or was not to be read; it reports all faults.
    """
    config, found = _check(given.settings)
    faults = [*given.faults, *found, *(_unreachable(given.settings) if reachable else ())]
    if faults:
        raise ConfigError(faults)
    return config


def _unreachable(settings: _Settings) -> list[str]:
    """Return why other hosts could not reach the sidecar, whatever else is wrong."""
    sections = ("broker", "sidecar", "security", "tls")
    config, faulty = _built({at: one for at, one in settings.items() if at[0] in sections})
    if faulty or any(contradictions(config)):
        return []  # One of these keys is wrong itself, and reported.
    why = unreachable(config.sidecar.advertised_url, [config.broker.id])
    return [why] if why else []


def _check(settings: _Settings) -> tuple[Config, list[str]]:
    """Return the configuration, and the faults of single keys and of keys together."""
    config, faulty = _built(settings)
    contradicted = (
        f"{_place(settings, one)}; expected {one.expected}"
        for one in contradictions(config)
        if faulty.keys().isdisjoint({(one.section, one.key), *one.because})
    )
    faults = [*faulty.values(), *contradicted]
    return config, [*faults, *_strategy_faults(config, settings, faulty)]


def _built(settings: _Settings) -> tuple[Config, dict[_Key, str]]:
    """Return the configuration, and the fault of each key that is wrong in itself.

    Such keys have their defaults, required ones an example. Contradictions are not checked.
    """
    try:
        return Config.model_validate(_nested(settings), context=CONTRADICTIONS_ALLOWED), {}
    except ValidationError as error:
        at = ((str(one["loc"][0]), str(one["loc"][1])) for one in error.errors())
        faulty = {key: _fault(settings.get(key), keys_of(key[0])[key[1]]) for key in at}
    sound = {at: setting for at, setting in settings.items() if at not in faulty}
    for known in describe():
        if known.required:
            sound.setdefault((known.section, known.key), GivenValue(known.example, "an example"))
    return Config.model_validate(_nested(sound), context=CONTRADICTIONS_ALLOWED), faulty


def _strategy_faults(config: Config, settings: _Settings, faulty: Collection[_Key]) -> list[str]:
    """Return the strategies and settings of strategies that do not exist or do not go together."""
    found: list[str] = []
    shedder = SHEDDERS.get(config.shedding.strategy, SHEDDERS[SheddingSettings().strategy])

    def attempt(make: Callable[[], object]) -> None:
        try:
            make()
        except ConfigError as error:
            found.extend(error.faults)

    for section, known, make in (
        ("shedding", SHEDDERS, partial(make_shedder, config.shedding)),
        ("placement", PLACEMENTS, partial(make_placement, config.placement, shedder)),
    ):
        named = settings.get((section, "strategy"))
        if {(section, "strategy"), (section, "settings")}.isdisjoint(faulty):
            if named is not None and named.value not in known:
                attempt(partial(strategy_named, known, str(named.value), named.place))
            else:
                attempt(make)
    for shadow in config.shedding.shadows:
        attempt(partial(make_shadow, ShadowSettings.of(shadow)))
    chosen = config.placement.strategy
    if found or chosen is None or go_together(shedder, PLACEMENTS[chosen]):
        return found
    text = f"{settings['placement', 'strategy'].place}; expected {not_together(shedder)}"
    if shedder is JointShedder and ("shedding", "strategy") not in settings:
        text += ", and is the default; others take a placement: [shedding] strategy = 'AvgShedder'"
    return [text]


def _nested(settings: _Settings) -> dict[str, dict[str, Any]]:
    # Every section is there, so that a missing required key is reported as such.
    nested: dict[str, dict[str, Any]] = {known.section: {} for known in describe()}
    for (section, key), setting in settings.items():
        nested[section][key] = setting.value
    return nested


def _fault(setting: GivenValue | None, known: KeyDescription) -> str:
    if setting is None:
        where = f"[{known.section}] {known.key} is not set (in a file, or as {known.variable})"
        return f"{where}; expected {known.expected}"
    return f"{setting.place}; expected {known.expected}"


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
