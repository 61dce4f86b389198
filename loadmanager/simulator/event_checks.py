"""Checks of the events of a scenario: times, brokers, and states of brokers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import StrEnum
from itertools import islice
from typing import Final

from loadmanager.simulator.errors import Contradiction
from loadmanager.simulator.scenario import Event, Scenario
from loadmanager.simulator.scenario.events import Shift
from loadmanager.simulator.toml_lines import TomlPath

BROKERS: Final = ("brokers", "brokers.name", "brokers.count", "brokers.joined")
"""The keys that define the brokers of a scenario."""

_EVENTS: Final = ("events", "events.kind", "events.at_s", "events.brokers")
_WHOLE: Final = ("duration_s",)
_LOADS: Final = ("load", "load.namespace", "trace")
_MAX_NAMED: Final = 12
_MAX_COMPARED: Final = 500


class _State(StrEnum):
    """The state of a broker, in words that follow "it is"."""

    THERE = "there"
    AWAY = "not there"
    DRAINING = "draining, or gone already"


@dataclass(frozen=True, slots=True)
class _Rule:
    """The states in which an event can happen to a broker, and the state after it."""

    states: tuple[_State, ...]
    becomes: _State | None = None


_RULES: Final[Mapping[str, _Rule]] = {
    "join": _Rule((_State.AWAY, _State.DRAINING), _State.THERE),
    "leave": _Rule((_State.THERE,), _State.AWAY),
    # A drain may be in progress or complete: only the simulation knows.
    "crash": _Rule((_State.THERE, _State.DRAINING), _State.AWAY),
    "drain": _Rule((_State.THERE,), _State.DRAINING),
    "restart": _Rule((_State.THERE,)),
    "noise": _Rule((_State.THERE, _State.DRAINING)),
    "silence": _Rule((_State.THERE, _State.DRAINING)),
}


def members(scenario: Scenario) -> Mapping[str, tuple[str, ...]]:
    """Return the brokers of each name: all of a class, or the broker itself."""
    classes = {group.name: group.brokers for group in scenario.brokers}
    return classes | {name: (name,) for name in scenario.broker_names}


def event_contradictions(scenario: Scenario) -> Iterator[Contradiction]:
    """Yield events at a wrong time, for unknown brokers or loads, or in a wrong state."""
    known = members(scenario)
    for at, event in enumerate(scenario.events):
        path: TomlPath = ("events", at)
        if event.at_s >= scenario.duration_s:
            fault = f"expected a time before the end, duration_s = {scenario.duration_s:g}"
            yield Contradiction((*path, "at_s"), fault, _WHOLE)
        if isinstance(event, Shift):
            yield from _of_shift((*path, "namespace"), event, scenario)
        else:
            yield from unknown_brokers((*path, "brokers"), event.brokers, known)
    yield from _wrong_states(scenario, known)


def unknown_brokers(
    path: TomlPath, names: Sequence[str], known: Mapping[str, tuple[str, ...]]
) -> Iterator[Contradiction]:
    """Yield names that are neither a broker nor a class, and brokers named twice."""
    seen: set[str] = set()
    for at, name in enumerate(names):
        if name not in known:
            yield Contradiction((*path, at), _expected_broker(name, known), BROKERS)
        elif seen.intersection(known[name]):
            yield Contradiction((*path, at), "expected each broker once", BROKERS)
        seen.update(known.get(name, ()))


def _expected_broker(name: str, known: Mapping[str, tuple[str, ...]]) -> str:
    close = get_close_matches(name, islice(known, _MAX_COMPARED), 1)
    hint = f"; did you mean {close[0]}?" if close else ""
    names = ", ".join(islice(known, _MAX_NAMED)) + (", ..." if len(known) > _MAX_NAMED else "")
    return f"expected a broker or a class of brokers, such as {names}{hint}"


def _of_shift(path: TomlPath, event: Shift, scenario: Scenario) -> Iterator[Contradiction]:
    # The namespaces of a trace are only known when it is read.
    namespaces = list(dict.fromkeys(load.namespace for load in scenario.load))
    if scenario.trace is None and event.namespace not in namespaces:
        fault = f"expected the namespace of a load: {', '.join(namespaces) or 'there is none'}"
        yield Contradiction(path, fault, _LOADS)


def _wrong_states(
    scenario: Scenario, known: Mapping[str, tuple[str, ...]]
) -> Iterator[Contradiction]:
    """Yield events that cannot happen to brokers in their state."""
    states = {
        name: _State.THERE if group.joined else _State.AWAY
        for group in scenario.brokers
        for name in group.brokers
    }
    in_time = sorted(enumerate(scenario.events), key=lambda numbered: numbered[1].at_s)
    for at, event in in_time:
        if isinstance(event, Shift):
            continue
        concerned = [name for given in event.brokers for name in known.get(given, ())]
        if wrong := [name for name in concerned if states[name] not in _RULES[event.kind].states]:
            fault = _wrong_state(event, wrong[0], states[wrong[0]])
            yield Contradiction(("events", at, "brokers"), fault, (*BROKERS, *_EVENTS))
        if (becomes := _RULES[event.kind].becomes) is not None:
            states |= dict.fromkeys(concerned, becomes)


def _wrong_state(event: Event, broker: str, state: _State) -> str:
    wanted = " or ".join(_RULES[event.kind].states)
    return f"expected brokers that are {wanted} for a {event.kind}; {broker} is {state} by then"
