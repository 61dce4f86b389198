"""Validation of single values of a scenario, and the scenario without faulty values.

Contradictions are only checked between valid values. Faulty values are left out, with the table
around them if they are required, and the rest is checked without them.
"""

import difflib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

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
from loadmanager.simulator.scenario_text import ScenarioText
from loadmanager.simulator.toml_lines import TomlPath

_SCENARIO = Table(Scenario)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidPart:
    """The scenario of the valid values; None if they are not sufficient.

    ``faults`` are by the path of the faulty value; ``doubtful`` are the paths of values that may
    differ from the intended ones. ``kept`` are the positions of the elements of each list in the
    file.
    """

    scenario: Scenario | None
    faults: Mapping[TomlPath, str]
    doubtful: frozenset[TomlPath]
    kept: Mapping[TomlPath, Sequence[int]]

    def as_written(self, at: TomlPath) -> TomlPath:
        """Return the path in the file of a value of the scenario."""
        path: TomlPath = ()
        for step in at:
            positions = self.kept.get(path, ())
            path = (*path, positions[step] if positions and isinstance(step, int) else step)
        return path


def valid_part(text: ScenarioText) -> ValidPart:
    """Return the scenario of the valid values of a file, and the faults of the others."""
    scenario, errors = _validated(text.content)
    faults = _deepest([_fault(text, error) for error in errors])
    kept: dict[TomlPath, Sequence[int]] = {}
    if faults:
        rest = _without(text.content, (), {fault.aside for fault in faults}, kept)
        # The title is only used in messages.
        scenario, _ = _validated({"title": "untitled", **rest})
    return ValidPart(
        scenario=scenario,
        faults={fault.at: fault.text for fault in faults},
        doubtful=frozenset(
            path for fault in faults for path in (fault.at, fault.aside, fault.means)
        ),
        kept=kept,
    )


def name_of(at: TomlPath) -> str:
    """Return the name of a key without positions: ``events.at_s`` for that of each event."""
    return ".".join(step for step in at if isinstance(step, str))


def _validated(content: Mapping[str, Any]) -> tuple[Scenario | None, Sequence[ErrorDetails]]:
    try:
        return Scenario.model_validate(content), ()
    except ValidationError as error:
        return None, error.errors(include_url=False, include_input=False)


def _without(
    value: Any, at: TomlPath, aside: Collection[TomlPath], kept: dict[TomlPath, Sequence[int]]
) -> Any:
    if isinstance(value, dict):
        return {
            key: _without(inner, (*at, key), aside, kept)
            for key, inner in value.items()
            if (*at, key) not in aside
        }
    if isinstance(value, list):
        kept[at] = [i for i in range(len(value)) if (*at, i) not in aside]
        return [_without(value[i], (*at, i), aside, kept) for i in kept[at]]
    return value


@dataclass(frozen=True, slots=True)
class _Fault:
    """A faulty value. ``aside`` is the part that is left out, ``means`` the intended key."""

    at: TomlPath
    aside: TomlPath
    means: TomlPath
    text: str


def _deepest(faults: Sequence[_Fault]) -> Sequence[_Fault]:
    """Return one fault per value, and none for tables whose content is faulty.

    pydantic reports a fault for each type of a union; and a list whose elements are all faulty also
    is too short.
    """
    around = {fault.at[:end] for fault in faults for end in range(len(fault.at))}
    first: dict[TomlPath, _Fault] = {}
    for fault in faults:
        if fault.at not in around:
            first.setdefault(fault.at, fault)
    return list(first.values())


def _fault(text: ScenarioText, error: ErrorDetails) -> _Fault:
    at, shapes = _path(error["loc"])
    if error["type"].startswith("union_tag"):
        at = (*at, "kind")
    elif error["type"] == "extra_forbidden":
        hint, close = _closest(str(at[-1]), shapes[-2])
        if at == ("model",):
            hint = "there is one model; expected the key to be left out"
        fault = f"{text.place(at)}; no such key; {hint}"
        return _Fault(at, at, (*at[:-1], close), fault)
    fault = f"{text.place(at)}; expected {_expected(at, shapes)}"
    return _Fault(at, _optional_part(at, shapes), at, fault)


def _path(loc: tuple[int | str, ...]) -> tuple[TomlPath, list[Shape]]:
    """Return the path in the file of an error of pydantic, and the shapes along it.

    The location in pydantic also contains the kind of a table of a union, and the type of a plain
    value.
    """
    at: TomlPath = ()
    shapes: list[Shape] = [_SCENARIO]
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


def _expected(at: TomlPath, shapes: Sequence[Shape]) -> str:
    """Return a text about the accepted values at a path."""
    around, last = shapes[len(at) - 1], at[-1]
    if isinstance(around, Kinds):
        return "one of " + ", ".join(f'"{kind}"' for kind in around.models)
    if isinstance(around, Table):
        return keys_of(around.model)[str(last)].expected
    if isinstance(around, Several):
        return around.of.expected if isinstance(around.of, Plain) else "a table"
    return "true or false, a number, a text, or a list of texts"


def _optional_part(at: TomlPath, shapes: Sequence[Shape]) -> TomlPath:
    """Return the path of the smallest optional part around a value."""
    for end in range(len(at), 1, -1):
        around, last = shapes[end - 1], at[end - 1]
        if isinstance(around, Several) and not isinstance(around.of, Plain):
            return at[:end]
        if isinstance(around, Table) and not keys_of(around.model)[str(last)].required:
            return at[:end]
    return at[:1]


def _closest(key: str, around: Shape) -> tuple[str, str]:
    """Return a hint for an unknown key, and the key that was probably intended."""
    known = keys_of(around.model) if isinstance(around, Table) else {}
    if close := difflib.get_close_matches(key, known, 1, 0.6):
        return f"did you mean {close[0]}?", close[0]
    return f"expected one of {', '.join(known)}", key
