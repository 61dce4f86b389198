import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import structlog

from loadmanager.config.describe import (
    ENVIRONMENT_PREFIX,
    HIDDEN,
    KeyDescription,
    as_toml,
    describe,
    keys_of,
    section_models,
)
from loadmanager.config.forms import plain_value

log = structlog.get_logger()

IGNORED: Final[Mapping[tuple[str, str], str]] = {
    ("planner", "learned_costs"): "there is no published cost model any more",
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
        _take_override(given, text)
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
                _take(
                    given,
                    (section, key),
                    value,
                    place=f"{path}: [{section}] {key} = ",
                    shown=as_toml(value),
                )


def _take_environment(given: GivenSettings, environ: Mapping[str, str]) -> None:
    for variable, text in sorted(environ.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or not text:
            continue
        names = variable.removeprefix(ENVIRONMENT_PREFIX).lower().split("__", maxsplit=2)
        if len(names) == 1:
            _report_single_underscore(given, variable)
        else:
            put_text(given, names, text, f"environment {variable}=")


def _report_single_underscore(given: GivenSettings, variable: str) -> None:
    """Report ``LOADMANAGER_LOG_LEVEL``, and no variable that names no key.

    Kubernetes gives every pod variables named after its services: one called
    ``loadmanager`` brings ``LOADMANAGER_PORT`` and more, which must not stop a start.
    """
    for known in describe():
        if variable == known.variable.replace("__", "_"):
            given.faults.append(
                f"environment {variable}: sets nothing; did you mean {known.variable}?"
            )


def _take_override(given: GivenSettings, text: str) -> None:
    name, equals, value = text.partition("=")
    names = name.strip().split(".", maxsplit=2)
    if not equals or len(names) == 1:
        given.faults.append(f"--set {name}; expected section.key=value")
    else:
        put_text(given, names, value, f"--set {name}=")


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
    value = _from_text(known, text) if known and not subkey else plain_value(text)
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
        why = _no_such_key(*at) if at[0] in section_models() else _no_such_section(at[0])
        given.faults.append(f"{unknown}; {why}")
    else:
        given.put(known, value, place + (HIDDEN if known.secret else shown), subkey)


def _from_text(known: KeyDescription, text: str) -> object:
    """Return the value of a text; a text that has none is returned, and refused later."""
    if known.kind == "text":
        return text
    return plain_value(text.lower() if known.kind == "switch" else text)


def _no_such_section(section: str) -> str:
    close = difflib.get_close_matches(section, section_models(), 1, 0.5)
    known = (
        f"did you mean [{close[0]}]?" if close else "expected one of " + ", ".join(section_models())
    )
    return f"no such section; {known}"


def _no_such_key(section: str, key: str) -> str:
    keys = keys_of(section)
    return f"no such key{_did_you_mean(key, keys) or '; expected one of ' + ', '.join(keys)}"


def _did_you_mean(key: str, keys: Iterable[str]) -> str:
    """Return a question that names the closest key, of this section before all others."""
    if close := difflib.get_close_matches(key, keys, 1, 0.6):
        return f"; did you mean {close[0]}?"
    everywhere = {k.key: k for k in describe()}
    if close := difflib.get_close_matches(key, everywhere, 1, 0.75):
        found = everywhere[close[0]]
        return f"; did you mean [{found.section}] {found.key}?"
    return ""
