"""What can be configured, read from the models: for messages, the annotated file and documents."""

import json
import math
import textwrap
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from loadmanager.config.forms import Form, Section
from loadmanager.config.model import Config

ENVIRONMENT_PREFIX: Final = "LOADMANAGER_"

HIDDEN: Final = "********"
"""Stands for a secret wherever values are shown."""

_DYNAMIC: Final = " Dynamic."

Kind = Literal["text", "number", "integer", "switch", "list", "table"]

_UNITS: Final = {
    "_bytes_per_s_per_round": "bytes per second",
    "_mbit_per_s": "Mbit per second",
    "_mib_per_s": "MiB per second",
    "_msgs_per_s": "messages per second",
    "_mib": "MiB",
    "_gib": "GiB",
    "_days": "days",
    "_bytes": "bytes",
    "_fraction": "fraction, 1.0 is all",
    "_points": "fraction of a resource's limit",
    "_percent": "percent",
    "_s": "seconds",
}

_KINDS: Final[Mapping[Any, Kind]] = {
    bool: "switch",
    int: "integer",
    float: "number",
    str: "text",
    Path: "text",
    SecretStr: "text",
    tuple: "list",
}

_PLAIN: Final[Mapping[Kind, str]] = {
    "text": "a text",
    "number": "a number",
    "integer": "a whole number",
    "switch": "true or false",
    "list": 'a list of texts, such as ["eth0"]',
    "table": "a table of keys with plain values",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDescription:
    """One key: what it accepts and what it does.

    ``default`` is None for a key that is required or unset by default; ``expected``
    is worded to follow the word "expected"; ``unit`` is empty where there is none.
    ``dynamic`` keys can be changed for the whole cluster while it runs.
    """

    section: str
    key: str
    kind: Kind
    expected: str
    unit: str
    default: object
    example: object
    required: bool
    secret: bool
    dynamic: bool
    description: str

    @property
    def variable(self) -> str:
        return f"{ENVIRONMENT_PREFIX}{self.section.upper()}__{self.key.upper()}"


@cache
def describe() -> tuple[KeyDescription, ...]:
    return tuple(
        _key_description(
            section, key, field, dynamic=model.dynamic is True or key in (model.dynamic or ())
        )
        for section, model in section_models().items()
        for key, field in model.model_fields.items()
    )


@cache
def keys_of(section: str) -> Mapping[str, KeyDescription]:
    return {k.key: k for k in describe() if k.section == section}


@cache
def section_models() -> Mapping[str, type[Section]]:
    return {
        name: field.annotation
        for name, field in Config.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, Section)
    }


def shown(config: Config) -> Mapping[str, str]:
    """Return every value of a configuration as a text under ``section.key``, secrets hidden."""
    return {
        f"{known.section}.{known.key}": _as_text(getattr(getattr(config, known.section), known.key))
        for known in describe()
    }


def _as_text(value: object) -> str:
    if isinstance(value, SecretStr):
        return HIDDEN if value.get_secret_value() else ""
    if isinstance(value, str):
        return value
    return json.dumps(
        value, default=lambda one: one.model_dump() if isinstance(one, Section) else str(one)
    )


def annotated_toml() -> str:
    """Return a configuration file that names, explains and comments out every key.

    Only required keys are set. ``#key = value`` is a default, so that taking the ``#``
    away changes nothing; ``# text`` is a comment.
    """
    lines = [
        "# Settings of a loadmanager sidecar. Made by `loadmanager config show-defaults`.",
        "#",
        "# Every key can also be set by an environment variable, which wins over this file:",
        f"# {ENVIRONMENT_PREFIX}<SECTION>__<KEY>, lists and tables as JSON; an empty variable sets",
        "# nothing. `#key = value` is a default: taking the # away changes nothing.",
        "# `loadmanager config check --config FILE` reports all mistakes at once. Dynamic keys can",
        "# be changed for all sidecars while they run: `loadmanager config set SECTION.KEY VALUE`.",
    ]
    for section, model in section_models().items():
        lines += ["", f"[{section}]", *_comment(model.__doc__ or "")]
        for key in keys_of(section).values():
            lines += [
                "",
                *_comment(f"{key.description} Expected: {key.expected}.{_DYNAMIC * key.dynamic}"),
            ]
            unset = key.default is None
            line = f"{key.key} = {as_toml(key.example if unset else key.default)}"
            note = "  # an example; unset by default"
            lines.append(line if key.required else f"#{line}{note if unset else ''}")
    return "\n".join(lines) + "\n"


def as_toml(value: object) -> str:
    """Return a plain value as TOML writes it; JSON's texts, numbers and lists are TOML's too."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{k} = {as_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(as_toml(v) for v in value) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | str):
        return json.dumps(value, ensure_ascii=False)
    return str(value)


def _comment(text: str, width: int = 96) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        width + 2,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _key_description(section: str, key: str, field: FieldInfo, *, dynamic: bool) -> KeyDescription:
    plain = _without_none(field.annotation)
    kind: Kind = "table" if _is_table(plain) else _kind(plain)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    secret = plain is SecretStr
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if kind == "number" and isinstance(default, int):
        default = float(default)
    return KeyDescription(
        section=section,
        key=key,
        kind=kind,
        expected=expected_of(field),
        unit=next((unit for suffix, unit in _UNITS.items() if key.endswith(suffix)), ""),
        default=default,
        example=(field.examples or [default])[0],
        required=field.is_required(),
        secret=secret,
        dynamic=dynamic,
        description=" ".join((field.description or "").split()),
    )


def _without_none(annotation: Any) -> Any:
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        return next(_without_none(a) for a in get_args(annotation) if a is not type(None))
    return getattr(annotation, "__supertype__", annotation)


def _is_table(plain: Any) -> bool:
    return issubclass(get_origin(plain), Mapping) if isinstance(get_origin(plain), type) else False


def _kind(plain: Any) -> Kind:
    return "text" if get_origin(plain) is Literal else _KINDS[get_origin(plain) or plain]


def expected_of(field: FieldInfo) -> str:
    """Return what a field with a plain value, a list or a table of such accepts, in words."""
    for mark in field.metadata:
        if isinstance(mark, Form):
            return mark.expected
    plain = _without_none(field.annotation)
    if get_origin(plain) is Literal:
        return "one of " + ", ".join(json.dumps(choice) for choice in get_args(plain))
    return " ".join([_PLAIN["table" if _is_table(plain) else _kind(plain)], *_bounds(field)])


def _bounds(field: FieldInfo) -> list[str]:
    low = next((m for m in field.metadata if isinstance(m, Ge | Gt)), None)
    high = next((m for m in field.metadata if isinstance(m, Le | Lt)), None)
    if isinstance(low, Ge) and isinstance(high, Le):
        return [f"from {_figure(low.ge)} to {_figure(high.le)}"]
    words = [f"above {_figure(low.gt)}"] if isinstance(low, Gt) else []
    words += [f"from {_figure(low.ge)}"] if isinstance(low, Ge) else []
    words += [f"up to {_figure(high.le)}"] if isinstance(high, Le) else []
    return words + ([f"below {_figure(high.lt)}"] if isinstance(high, Lt) else [])


def _figure(bound: Any) -> str:
    """Return a bound without a point where it is whole: 1e8 is 100000000."""
    return str(int(bound)) if bound == int(bound) else str(bound)
