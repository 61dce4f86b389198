import difflib
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
from pydantic import ValidationError

from loadmanager.config.describe import (
    ENVIRONMENT_PREFIX,
    HIDDEN,
    KeyDescription,
    as_toml,
    describe,
    keys_of,
    section_models,
)
from loadmanager.config.forms import ConfigError, Contradiction, ShadowSettings, plain_value
from loadmanager.config.model import CONTRADICTIONS_ALLOWED, Config, contradictions
from loadmanager.config.sections import SheddingSettings
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

log = structlog.get_logger()

IGNORED: Final[Mapping[tuple[str, str], str]] = {
    ("planner", "learned_costs"): "there is no published cost model any more",
    ("lookup", "mode"): "every sidecar answers lookups, and asks the leader itself",
}
"""Keys of former versions that have no meaning any more, with the reason."""


@dataclass(frozen=True, slots=True)
class GivenValue:
    """One value as given, and the words that say where it was found."""

    value: object
    place: str


@dataclass(slots=True)
class GivenSettings:
    """All that was set, by section and key, and what could not be taken in."""

    settings: dict[tuple[str, str], GivenValue] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def put(self, known: KeyDescription, value: object, place: str, subkey: str = "") -> None:
        at = (known.section, known.key)
        if subkey:
            before = self.settings.get(at)
            old = before.value if before is not None and isinstance(before.value, dict) else {}
            value = {**old, subkey: value}
        self.settings[at] = GivenValue(value, place)


def gather(
    path: Path | None, environ: Mapping[str, str], overrides: Sequence[str]
) -> GivenSettings:
    """Return what the three sources set, a later one over an earlier one."""
    given = GivenSettings()
    if path is not None:
        _take_file(given, path)
    _take_environment(given, environ)
    for text in overrides:
        name, equals, value = text.partition("=")
        names = name.strip().split(".", maxsplit=2)
        if not equals or len(names) == 1:
            given.faults.append(f"--set {name}; expected section.key=value")
        else:
            put_text(given, names, value, f"--set {name}=")
    return given


def _take_file(given: GivenSettings, path: Path) -> None:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        given.faults.append(f"{path}: {error.strerror}; expected a readable TOML file")
        return
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        given.faults.append(f"{path}: {error}; expected TOML")
        return
    for section, keys in content.items():
        if not isinstance(keys, dict):
            hint = _did_you_mean(section, ())
            given.faults.append(
                f"{path}: {section} stands in no section; expected [section] above it{hint}"
            )
        elif section not in section_models():
            given.faults.append(f"{path}: [{section}]; {_no_such_section(section)}")
        else:
            for key, value in keys.items():
                place = f"{path}: [{section}] {key} = "
                _take(given, (section, key), value, place=place, shown=as_toml(value))


def _take_environment(given: GivenSettings, environ: Mapping[str, str]) -> None:
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text:
            continue
        names = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__", maxsplit=2)
        if len(names) > 1:
            put_text(given, names, text, f"environment {variable}=")
            continue
        # Others name no key: Kubernetes gives every pod variables named after its services, and one
        # called ``loadmanager`` brings ``LOADMANAGER_PORT`` and more, which must not stop a start.
        for known in describe():
            if variable == known.variable.replace("__", "_"):
                fault = f"environment {variable}: sets nothing; did you mean {known.variable}?"
                given.faults.append(fault)


def put_text(given: GivenSettings, names: Sequence[str], text: str, place: str) -> None:
    """Set the key called ``names`` to what ``text`` stands for; faults are added to ``given``.

    ``names`` are section and key, and the entry where the key is a table. A message
    names the setting by ``place``, followed by the text unless it is a secret.
    """
    section, key, *subkey = names
    known = keys_of(section).get(key)
    if subkey and (known is None or known.kind != "table"):
        given.faults.append(f"{place}{HIDDEN}; expected a section and a key only")
        return
    value = plain_value(text)
    if known and not subkey and known.kind == "text":
        value = text
    elif known and known.kind == "switch":
        value = plain_value(text.lower())
    _take(given, (section, key), value, place=place, shown=text, subkey="".join(subkey))


def _take(
    given: GivenSettings,
    at: tuple[str, str],
    value: object,
    *,
    place: str,
    shown: str,
    subkey: str = "",
) -> None:
    known = keys_of(at[0]).get(at[1])
    if known is None and at in IGNORED:
        log.warning("configuration.key.ignored", key=".".join(at), reason=IGNORED[at])
    elif known is None:
        # The value is not shown: it may be a password under a misspelt name.
        unknown = place.rstrip("= ")
        why = _no_such_section(at[0])
        if keys := keys_of(at[0]):
            hint = _did_you_mean(at[1], keys) or f"; expected one of {', '.join(keys)}"
            why = f"no such key{hint}"
        given.faults.append(f"{unknown}; {why}")
    else:
        given.put(known, value, place + (HIDDEN if known.secret else shown), subkey)


def _no_such_section(section: str) -> str:
    close = difflib.get_close_matches(section, section_models(), 1, 0.5)
    known = (
        f"did you mean [{close[0]}]?" if close else "expected one of " + ", ".join(section_models())
    )
    return f"no such section; {known}"


def _did_you_mean(key: str, keys: Iterable[str]) -> str:
    """Return a question that names the closest key, of this section before all others."""
    if close := difflib.get_close_matches(key, keys, 1, 0.6):
        return f"; did you mean {close[0]}?"
    everywhere = {k.key: k for k in describe()}
    if close := difflib.get_close_matches(key, everywhere, 1, 0.75):
        found = everywhere[close[0]]
        return f"; did you mean [{found.section}] {found.key}?"
    return ""


_Key = tuple[str, str]
_Settings = Mapping[_Key, GivenValue]


def load_config(
    path: Path | None,
    environ: Mapping[str, str],
    overrides: Sequence[str] = (),
    *,
    reachable: bool = False,
) -> Config:
    """Return the settings of the file, under those of the environment, under ``overrides``.

    Of the environment, ``LOADMANAGER_<SECTION>__<KEY>`` count; overrides are ``section.key=value``.
    Raises `ConfigError`: as `checked`; it reports all faults of all sources.
    """
    return checked(gather(path, environ, overrides), reachable=reachable)


def checked(given: GivenSettings, *, reachable: bool = False) -> Config:
    """Return the configuration that was given.

    ``reachable`` refuses an advertised URL that other hosts cannot reach: a sidecar starts with it,
    for it may be alone, and does not become ready. Raises `ConfigError`: it has a fault, or was not
    to be read; it reports all faults.
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
