"""Loading of scenario files, with all mistakes reported with their lines."""

from collections.abc import Iterator, Mapping
from functools import reduce
from pathlib import Path
from typing import Any

from loadmanager.simulator.checks import contradictions
from loadmanager.simulator.errors import Contradiction, ScenarioError
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scenario_text import ScenarioText, read_text
from loadmanager.simulator.toml_lines import TomlPath
from loadmanager.simulator.validation import ValidPart, name_of, valid_part

__all__ = ["ScenarioError", "load_scenario"]


def load_scenario(path: Path, *, trace: Path | None = None) -> Scenario:
    """Return the scenario of a TOML file. The path of its trace is relative to the file.

    Args:
        path: the file.
        trace: a file of recorded topic rates, which replaces the load of the scenario.

    Raises:
        ScenarioError: it cannot be read or has faults; the error lists all of them.
    """
    text = read_text(path)
    if trace is not None and not trace.is_file():
        raise ScenarioError([f"{trace}: no such file; expected recorded topic rates"])
    valid = valid_part(text)
    scenario = None if valid.scenario is None else _with_trace(valid.scenario, path, trace)
    together = [] if scenario is None else list(_contradictions(text, valid, scenario))
    faults = sorted([*valid.faults.items(), *together], key=lambda fault: text.lines.line(fault[0]))
    if scenario is None or faults:
        raise ScenarioError([line for _, line in faults])
    return scenario


def _with_trace(scenario: Scenario, path: Path, trace: Path | None) -> Scenario:
    if trace is not None:
        return scenario.model_copy(update={"load": (), "trace": trace})
    if scenario.trace is not None:
        return scenario.model_copy(update={"trace": path.parent / scenario.trace})
    return scenario


def _contradictions(
    text: ScenarioText, valid: ValidPart, scenario: Scenario
) -> Iterator[tuple[TomlPath, str]]:
    """Yield the contradictions, except those that a faulty value may cause."""
    doubtful = {name_of(at) for at in valid.doubtful}
    for one in contradictions(scenario):
        at = valid.as_written(one.at)
        if at not in valid.doubtful and not doubtful.intersection(one.because):
            yield at, f"{_place(text, scenario, one, at)}; {one.fault}"


def _place(text: ScenarioText, scenario: Scenario, one: Contradiction, at: TomlPath) -> str:
    value = reduce(_inner, one.at, scenario)
    if text.has(at) or not isinstance(value, bool | int | float | str):
        return text.place(at)
    return text.place_of_default(at, value, [tuple(key.split(".")) for key in one.because])


def _inner(value: Any, step: str | int) -> Any:
    """Return the part of ``value`` at one step of a path; None if it is missing."""
    if isinstance(step, str) and not isinstance(value, Mapping):
        return getattr(value, step, None)
    return value[step] if value else None
