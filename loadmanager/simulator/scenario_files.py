"""Scenario files: loading, with all mistakes reported by file, key, value and what was expected."""

import difflib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadmanager.config.describe import as_toml
from loadmanager.simulator.checks import Path as KeyPath
from loadmanager.simulator.checks import contradictions
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scenario.shapes import (
    Free,
    Kinds,
    Plain,
    Several,
    Shape,
    Table,
    keys_of,
)
from loadmanager.simulator.traces import read_trace

__all__ = ["ScenarioError", "load_scenario"]

_BARE_KEY: Final = re.compile(r"[-\w]+", re.ASCII)
_MAX_SHOWN: Final = 60


def load_scenario(path: Path, *, trace: Path | None = None) -> Scenario:
    """Return the scenario of a TOML file. The path of its trace is relative to the file.

    Args:
        path: the file.
        trace: a file of recorded topic rates, which replaces the load of the scenario.

    Raises:
        ScenarioError: it cannot be read or has faults: values that are not valid, all of them, or,
            if there are none, all contradictions between values.
    """
    content = _content(path)
    if trace is not None and not trace.is_file():
        raise ScenarioError([f"{trace}: no such file; expected recorded topic rates"])
    try:
        scenario = Scenario.model_validate(content)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise ScenarioError([f"{path}: {fault}" for fault in _faults(content, errors)]) from None
    if trace is not None:
        scenario = scenario.model_copy(update={"load": (), "trace": trace})
    elif scenario.trace is not None:
        scenario = scenario.model_copy(update={"trace": path.parent / scenario.trace})
    faults = [
        f"{path}: {_place(content, at, scenario)}; {fault}"
        for at, fault in contradictions(scenario)
    ]
    if faults:
        raise ScenarioError(faults)
    return scenario


def checked_file(path: Path, *, trace: Path | None = None) -> str:
    """Return the summary of a valid scenario.

    Raises:
        ScenarioError: the scenario or its trace has faults.
    """
    scenario = load_scenario(path, trace=trace)
    brokers, duration = f"{len(scenario.broker_names)} brokers", f"{scenario.duration_s:g} s"
    if scenario.trace is not None:
        recorded = read_trace(scenario.trace)
        topics = f"{len(recorded.topics)} topics at {len(recorded.times_s)} times"
        return f"{path}: sound: {brokers}, {topics}, {duration}"
    bundles = sum({load.namespace: load.bundles for load in scenario.load}.values())
    return f"{path}: sound: {brokers}, {bundles} bundles, {duration}"


def _content(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_bytes().decode("utf-8"))
    except OSError as error:
        fault = f"{error.strerror}; expected a scenario file"
    except UnicodeDecodeError as error:
        fault = f"the byte {error.object[error.start]:#04x} is not UTF-8; expected TOML in UTF-8"
    except RecursionError:
        fault = "lists in lists without end; expected TOML"
    except ValueError as error:
        # Besides its own error, tomllib raises errors of numbers and dates.
        fault = f"{error}; expected TOML"
    raise ScenarioError([f"{path}: {fault}"])


def _faults(content: Mapping[str, Any], errors: Sequence[ErrorDetails]) -> list[str]:
    """Return one fault per value, and none of tables with a faulty value in them.

    pydantic reports a fault for each type of a union; and a list whose elements are all faulty also
    is too short.
    """
    found: dict[KeyPath, str] = {}
    for error in errors:
        at, shapes = _path(error["loc"])
        if error["type"].startswith("union_tag"):
            at = (*at, "kind")
        unknown = error["type"] == "extra_forbidden"
        fault = _unknown(at, shapes[-2]) if unknown else f"expected {_expected(at, shapes)}"
        found.setdefault(at, f"{_place(content, at)}; {fault}")
    around = {at[:end] for at in found for end in range(len(at))}
    return [fault for at, fault in found.items() if at not in around]


def _path(loc: tuple[int | str, ...]) -> tuple[KeyPath, list[Shape]]:
    """Return the path in the file of an error of pydantic, and the shapes along it.

    The location in pydantic also contains the kind of a table of a union, and the type of a plain
    value.
    """
    at: KeyPath = ()
    shapes: list[Shape] = [Table(Scenario)]
    for step in loc:
        shape = shapes[-1]
        if isinstance(shape, Kinds):
            shapes[-1] = Table(shape.models[str(step)])
        elif isinstance(shape, Table):
            at = (*at, step)
            known = keys_of(shape.model).get(str(step))
            shapes.append(known.shape if known else Plain(""))
        elif isinstance(shape, Several | Free):
            at = (*at, step)
            shapes.append(shape.of if isinstance(shape, Several) else Plain(""))
    return at, shapes


def _expected(at: KeyPath, shapes: Sequence[Shape]) -> str:
    around, last = shapes[len(at) - 1], at[-1]
    if isinstance(around, Kinds):
        return "one of " + ", ".join(f'"{kind}"' for kind in around.models)
    if isinstance(around, Table):
        return keys_of(around.model)[str(last)].expected
    if isinstance(around, Several):
        return around.of.expected if isinstance(around.of, Plain) else "a table"
    return "true or false, a number, a text, or a list of texts"


def _unknown(at: KeyPath, around: Shape) -> str:
    if at == ("model",):
        return "no such key; expected it to be left out: there is one model"
    known = keys_of(around.model) if isinstance(around, Table) else {}
    if close := difflib.get_close_matches(str(at[-1]), known, 1, 0.6):
        return f"no such key; did you mean {close[0]}?"
    return f"no such key; expected one of {', '.join(known)}"


def _place(content: Mapping[str, Any], at: KeyPath, scenario: Scenario | None = None) -> str:
    """Return ``key = value`` of a value in the file, or of its default in the scenario."""
    key = "".join(
        f"[{step}]" if isinstance(step, int) else f".{_key(step)}" for step in at
    ).removeprefix(".")
    value: Any = content
    try:
        for step in at:
            value = value[step]
    except (KeyError, IndexError, TypeError):
        default = reduce(_inner, at, scenario)
        if not isinstance(default, bool | int | float | str):
            return f"{key} is not set"
        return f"{key} = {as_toml(default)} by default"
    shown = as_toml(value)
    return f"{key} = {shown if len(shown) <= _MAX_SHOWN else f'{shown[:_MAX_SHOWN]}...'}"


def _inner(value: Any, step: str | int) -> Any:
    if isinstance(step, str) and not isinstance(value, Mapping):
        return getattr(value, step, None)
    return value[step] if value else None


def _key(key: str) -> str:
    return key if _BARE_KEY.fullmatch(key) else json.dumps(key)
