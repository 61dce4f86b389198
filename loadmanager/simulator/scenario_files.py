"""Scenario files: those that come with the package, loading, and checks across values.

All mistakes are reported by file, key, value and what was expected.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cache, reduce
from importlib import resources
from itertools import islice, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from loadmanager.config import ConfigError
from loadmanager.config.describe import as_toml
from loadmanager.config.forms import Section, SettingValue
from loadmanager.config.model import timing_contradictions
from loadmanager.config.strategies import (
    STRATEGIES,
    fields_of,
    filled,
    own_placement,
    strategy_named,
)
from loadmanager.core.ids import Namespace
from loadmanager.core.shedding import SHEDDERS
from loadmanager.simulator.results import SCORE_DOCS
from loadmanager.simulator.scenario import (
    Burst,
    Daily,
    Flash,
    Hot,
    Load,
    Pattern,
    Scenario,
    ScenarioError,
    Shift,
    Steps,
    Trend,
)
from loadmanager.simulator.strategies import PAIR_NAMES
from loadmanager.simulator.traces import read_trace


@cache
def shipped() -> Mapping[str, Path]:
    folder = Path(str(resources.files(__package__) / "scenarios"))
    return MappingProxyType({path.stem: path for path in sorted(folder.glob("*.toml"))})


def find(name_or_path: str) -> Path:
    """Return the file of a shipped scenario, or the given path.

    A shipped name takes precedence over a file of the same name; ``./name`` is the file.

    Raises:
        ScenarioError: neither exists; the text lists the shipped names.
    """
    if name_or_path in shipped():
        return shipped()[name_or_path]
    path = Path(name_or_path)
    if path.suffix == ".toml" or name_or_path != path.name or path.is_file():
        return path
    close = difflib.get_close_matches(name_or_path, shipped(), 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    names = ", ".join(shipped())
    raise ScenarioError(
        [f"scenario {name_or_path!r}; expected a .toml file or one of {names}{hint}"]
    )


KeyPath = tuple[str | int, ...]
"""Keys and positions in lists from the root to a value."""

Contradictions = Iterator[tuple[KeyPath, str]]

_TOLERANCE: Final = 1e-9
_THERE: Final = "there"
_AWAY: Final = "not there"
_DRAINING: Final = "draining, or gone already"
# The states in which an event can happen to a broker, and the state after it. A drain may be in
# progress or complete: only the simulation knows.
_EVENTS: Final[Mapping[str, tuple[Sequence[str], str | None]]] = {
    "join": ((_AWAY, _DRAINING), _THERE),
    "leave": ((_THERE,), _AWAY),
    "crash": ((_THERE, _DRAINING), _AWAY),
    "drain": ((_THERE,), _DRAINING),
    "restart": ((_THERE,), None),
    "noise": ((_THERE, _DRAINING), None),
    "silence": ((_THERE, _DRAINING), None),
}
_MAX_NAMED: Final = 12


def contradictions(scenario: Scenario) -> Contradictions:
    yield from _brokers(scenario)
    yield from _times(scenario)
    yield from _loads(scenario)
    yield from _events(scenario)
    yield from _expectations(scenario)
    if scenario.shedding.shadows:
        fault = "expected none: --strategy has each strategy simulated by itself"
        yield ("shedding", "shadows"), fault
    shedding, placement = scenario.shedding, scenario.placement
    yield from _strategy("shedding", shedding.strategy, shedding.settings)
    beside = own_placement(SHEDDERS.get(shedding.strategy, object))
    yield from _strategy("placement", placement.strategy or beside, placement.settings)


def _brokers(scenario: Scenario) -> Contradictions:
    taken: set[str] = set()
    for at, group in enumerate(scenario.brokers):
        names = {group.name, *group.brokers}
        if again := taken.intersection(names):
            fault = f"expected a name of its own: another class has {min(again)}"
            yield ("brokers", at, "name"), fault
        taken |= names
    joins = any(event.kind == "join" for event in scenario.events)
    if not joins and not any(group.joined for group in scenario.brokers):
        fault = "expected true for some class, or an event of kind join: there is never a broker"
        yield ("brokers", 0, "joined"), fault


def _times(scenario: Scenario) -> Contradictions:
    if scenario.warm_up_s >= scenario.duration_s:
        fault = f"expected less than duration_s ({scenario.duration_s:g}): nothing would be scored"
        yield ("warm_up_s",), fault
    for key in ("tick_interval_s", "round_interval_s"):
        steps = getattr(scenario.leader, key) / scenario.step_s
        if round(steps) < 1 or abs(steps - round(steps)) > _TOLERANCE * steps:
            yield ("leader", key), f"expected a multiple of step_s ({scenario.step_s:g})"
    for one in timing_contradictions(scenario.report, scenario.leader):
        yield (one.section, one.key), f"expected {one.expected}"


def _members(scenario: Scenario) -> Mapping[str, tuple[str, ...]]:
    """Return the brokers of each name: all of a class, or the broker itself."""
    classes = {group.name: group.brokers for group in scenario.brokers}
    return classes | {name: (name,) for name in scenario.broker_names}


def _unknown_brokers(
    path: KeyPath, names: Sequence[str], known: Mapping[str, tuple[str, ...]]
) -> Contradictions:
    seen: set[str] = set()
    for at, name in enumerate(names):
        if name not in known:
            some = ", ".join(islice(known, _MAX_NAMED)) + ", ..." * (len(known) > _MAX_NAMED)
            yield (*path, at), f"expected a broker or a class of brokers, such as {some}"
        elif seen.intersection(known[name]):
            yield (*path, at), "expected each broker once"
        seen.update(known.get(name, ()))


def _loads(scenario: Scenario) -> Contradictions:
    if scenario.trace is None and not scenario.load:
        yield ("load",), "expected [[load]] sections, or a trace: there is nothing to do"
    elif scenario.trace is not None and scenario.load:
        yield ("trace",), "expected none beside [[load]] sections: a trace is the whole load"
    elif scenario.trace is not None and not scenario.trace.is_file():
        yield ("trace",), f"expected a file; there is no {scenario.trace}"
    for nth, pattern in enumerate(scenario.trace_patterns):
        yield from _pattern(("trace_patterns", nth), pattern, scenario.duration_s)
    first: dict[Namespace, Load] = {}
    for at, load in enumerate(scenario.load):
        path: KeyPath = ("load", at)
        yield from _of_one_namespace(path, load, first.setdefault(load.namespace, load))
        if isinstance(load.skew, Hot):
            among = load.topics if load.over == "topics" else min(load.topics, load.bundles)
            if load.skew.topics > among:
                fault = f"expected at most {among}, the {load.over} of the load"
                yield (*path, "skew", "topics"), fault
        yield from _placing(path, load, scenario)
        for nth, pattern in enumerate(load.patterns):
            yield from _pattern((*path, "patterns", nth), pattern, scenario.duration_s)


def _of_one_namespace(path: KeyPath, load: Load, first: Load) -> Contradictions:
    """Yield contradictions to the first load of a namespace, which alone needs to be placed."""
    if load.bundles != first.bundles:
        fault = f"expected {first.bundles}, as in the first load of {load.namespace}"
        yield (*path, "bundles"), fault
    fault = f"expected it in the first load of {load.namespace}, or the same there"
    if load.placed_on and load.placed_on != first.placed_on:
        yield (*path, "placed_on"), fault
    if "placed" in load.model_fields_set and load.placed != first.placed:
        yield (*path, "placed"), fault


def _placing(path: KeyPath, load: Load, scenario: Scenario) -> Contradictions:
    known = _members(scenario)
    there = {name for group in scenario.brokers if group.joined for name in group.brokers}
    yield from _unknown_brokers((*path, "placed_on"), load.placed_on, known)
    for at, name in enumerate(load.placed_on):
        if not there.issuperset(known.get(name, ())):
            fault = "expected brokers that are there from the beginning: joined = true"
            yield (*path, "placed_on", at), fault
    if load.placed_on and load.placed == "unowned":
        fault = 'expected none, as placed = "unowned" says that no broker has these bundles'
        yield (*path, "placed_on"), fault


def _pattern(path: KeyPath, pattern: Pattern, duration_s: float) -> Contradictions:
    before = f"expected a time before the end, duration_s = {duration_s:g}"
    match pattern:
        case Flash(at_s=at_s) if at_s >= duration_s:
            yield (*path, "at_s"), before
        case Trend(from_s=from_s) if from_s >= duration_s:
            yield (*path, "from_s"), before
        case Daily(kind=kind, peak_h=peak_h, spread_h=spread_h):
            period_h = {"day": 24, "week": 168}[kind]
            if peak_h >= period_h:
                yield (*path, "peak_h"), f"expected less than {period_h}, the hours of a {kind}"
            if spread_h > period_h / 2:
                yield (*path, "spread_h"), f"expected at most {period_h // 2}, half of a {kind}"
        case Burst(length_s=length_s, every_s=every_s) if every_s < length_s:
            fault = f"expected at least length_s ({length_s:g}): a burst ends before the next"
            yield (*path, "every_s"), fault
        case Steps():
            yield from _steps(path, pattern, before, duration_s)
        case _:
            pass


def _steps(path: KeyPath, steps: Steps, before: str, duration_s: float) -> Contradictions:
    at_s = steps.at_s
    for at, (earlier, later) in enumerate(pairwise(at_s), start=1):
        if later <= earlier:
            fault = f"expected times that ascend: more than {earlier:g}"
            yield (*path, "at_s", at), fault
    if at_s[-1] >= duration_s:
        yield (*path, "at_s", len(at_s) - 1), before
    if len(steps.factors) != len(at_s):
        fault = f"expected {len(at_s)} factors, one for each time of at_s"
        yield (*path, "factors"), fault


def _events(scenario: Scenario) -> Contradictions:
    known = _members(scenario)
    namespaces = list(dict.fromkeys(load.namespace for load in scenario.load))
    for at, event in enumerate(scenario.events):
        path: KeyPath = ("events", at)
        if event.at_s >= scenario.duration_s:
            fault = f"expected a time before the end, duration_s = {scenario.duration_s:g}"
            yield (*path, "at_s"), fault
        if not isinstance(event, Shift):
            yield from _unknown_brokers((*path, "brokers"), event.brokers, known)
        # The namespaces of a trace are only known when it is read.
        elif scenario.trace is None and event.namespace not in namespaces:
            some = ", ".join(namespaces) or "there is none"
            yield (*path, "namespace"), f"expected the namespace of a load: {some}"
    states = {
        name: _THERE if group.joined else _AWAY
        for group in scenario.brokers
        for name in group.brokers
    }
    for at, event in sorted(enumerate(scenario.events), key=lambda one: one[1].at_s):
        if isinstance(event, Shift):
            continue
        possible, becomes = _EVENTS[event.kind]
        concerned = [name for given in event.brokers for name in known.get(given, ())]
        if wrong := [name for name in concerned if states[name] not in possible]:
            fault = f"expected brokers that are {' or '.join(possible)} for a {event.kind}"
            yield ("events", at, "brokers"), f"{fault}; {wrong[0]} is {states[wrong[0]]} by then"
        if becomes is not None:
            states |= dict.fromkeys(concerned, becomes)


def _expectations(scenario: Scenario) -> Contradictions:
    for at, one in enumerate(scenario.expect):
        path: KeyPath = ("expect", at)
        if one.score not in SCORE_DOCS:
            close = difflib.get_close_matches(one.score, SCORE_DOCS, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            yield (*path, "score"), f"expected a score, one of {', '.join(SCORE_DOCS)}{hint}"
        if one.least is None and one.most is None:
            fault = "expected least or most beside it: without a bound it says nothing"
            yield (*path, "score"), fault
        elif one.least is not None and one.most is not None and one.least > one.most:
            yield (*path, "most"), f"expected at least the value of least ({one.least:g})"
        for nth, pattern in enumerate(one.strategies):
            if not any(fnmatchcase(name, pattern) for name in PAIR_NAMES):
                fault = f"expected a pair, such as {PAIR_NAMES[0]}, or a pattern that means some"
                yield (*path, "strategies", nth), fault


def _strategy(section: str, name: str, settings: Mapping[str, SettingValue]) -> Contradictions:
    try:
        kind: type = strategy_named(STRATEGIES[section], name, "")
    except ConfigError as error:
        yield (section, "strategy"), _after_place(error)
        return
    first: dict[tuple[str, str], str] = {}
    for key, value in settings.items():
        at = (section, "settings", key)
        try:
            filled(kind, {key: value}, "")
        except ConfigError as error:
            yield at, _after_place(error)
            continue
        group, setting = fields_of(kind)[key]
        if (same := first.setdefault((group, setting.name), key)) != key:
            yield at, f"expected it once: {same} is the same setting"


def _after_place(error: ConfigError) -> str:
    return error.faults[0].partition("; ")[2]


_BARE_KEY: Final = re.compile(r"[-\w]+", re.ASCII)
_MAX_SHOWN: Final = 60
# How pydantic begins a message, and what it calls a table.
_SHOULD: Final = re.compile(r"^: \w+ should")
_TABLE: Final = re.compile(r"valid dictionary or .*")


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
        at = _path(content, error)
        found.setdefault(at, f"{_place(content, at)}; {_fault(at, error)}")
    around = {at[:end] for at in found for end in range(len(at))}
    return [fault for at, fault in found.items() if at not in around]


def _path(content: Any, error: ErrorDetails) -> KeyPath:
    """Return the path in the file; the location of an error also has kinds and types of unions."""
    at: KeyPath = ()
    for step in error["loc"]:
        if isinstance(content, Mapping) and (step in content or error["type"] == "missing"):
            at, content = (*at, step), content.get(str(step))
        elif isinstance(content, list) and isinstance(step, int):
            at, content = (*at, step), content[step]
    return (*at, "kind") if error["type"].startswith("union_tag") else at


def _fault(at: KeyPath, error: ErrorDetails) -> str:
    said, context = error["msg"], error.get("ctx", {})
    if error["type"].startswith("union_tag"):
        return f"expected one of {context.get('expected_tags', 'the kinds of this table')}"
    if error["type"] == "extra_forbidden":
        if at == ("model",):
            return "no such key; expected it to be left out: there is one model"
        close = difflib.get_close_matches(str(at[-1]), _known_keys(), 1, 0.6)
        hint = f"; did you mean {close[0]}?" if close else ""
        return f"no such key; expected one of docs/scenario-format.md{hint}"
    if error["type"] == "path_type":
        return "expected the path of a file"
    said = _TABLE.sub("table", said.removeprefix("Value error, ").replace("valid tuple", "list"))
    if said == "Field required":
        return "expected a value"
    return said if "expected" in said else f"expected{_SHOULD.sub(' it to', f': {said}')}"


@cache
def _known_keys() -> frozenset[str]:
    schema = Scenario.model_json_schema()
    tables = [schema, *schema["$defs"].values()]
    return frozenset(key for table in tables for key in table["properties"])


def _place(content: Mapping[str, Any], at: KeyPath, scenario: Scenario | None = None) -> str:
    """Return ``key = value`` of a value in the file, or of its default in the scenario."""
    key = "".join(
        f"[{step}]"
        if isinstance(step, int)
        else f".{step if _BARE_KEY.fullmatch(step) else json.dumps(step)}"
        for step in at
    ).removeprefix(".")
    value = reduce(_inner, at, content)
    if value is None:
        default = reduce(_inner, at, scenario)
        if not isinstance(default, bool | int | float | str):
            return f"{key} is not set"
        return f"{key} = {as_toml(default)} by default"
    shown = as_toml(value)
    return f"{key} = {shown if len(shown) <= _MAX_SHOWN else f'{shown[:_MAX_SHOWN]}...'}"


def _inner(value: Any, step: str | int) -> Any:
    """Return what is in a table, a list or a section; None if that is not there."""
    try:
        return value[step]
    except (LookupError, TypeError):
        return getattr(value, str(step), None) if isinstance(value, Section) else None
