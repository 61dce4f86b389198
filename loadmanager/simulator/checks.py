"""Checks across the values of a scenario, and an estimate of the memory of a run."""

import difflib
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Final

from loadmanager.config import ConfigError
from loadmanager.config.forms import SettingValue
from loadmanager.config.model import timing_contradictions
from loadmanager.config.strategies import fields_of, filled, own_placement, strategy_named
from loadmanager.core.ids import Namespace
from loadmanager.core.placement import PLACEMENTS
from loadmanager.core.shedding import SHEDDERS
from loadmanager.simulator.errors import Contradiction
from loadmanager.simulator.event_checks import event_contradictions
from loadmanager.simulator.load_checks import load_contradictions
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scores import SCORE_NAMES
from loadmanager.simulator.strategies import PAIR_NAMES
from loadmanager.simulator.toml_lines import TomlPath

_TOLERANCE: Final = 1e-9
_STRATEGIES: Final[Mapping[str, Mapping[str, type]]] = {
    "shedding": SHEDDERS,
    "placement": PLACEMENTS,
}


def contradictions(scenario: Scenario) -> Iterator[Contradiction]:
    """Yield all contradictions between values; of a scenario that is too large only that."""
    too_large = tuple(size_contradictions(scenario))
    yield from too_large
    if too_large:
        return
    yield from _brokers(scenario)
    yield from _times(scenario)
    yield from load_contradictions(scenario)
    yield from event_contradictions(scenario)
    yield from _expectations(scenario)
    yield from _shadows(scenario)
    shedding, placement = scenario.shedding, scenario.placement
    yield from _strategy("shedding", shedding.strategy, shedding.settings)
    beside = own_placement(SHEDDERS.get(shedding.strategy, object))
    yield from _strategy("placement", placement.strategy or beside, placement.settings)


def _brokers(scenario: Scenario) -> Iterator[Contradiction]:
    because = ("brokers", "brokers.name", "brokers.count")
    taken: set[str] = set()
    for at, group in enumerate(scenario.brokers):
        names = {group.name, *group.brokers}
        if again := taken.intersection(names):
            fault = f"expected a name of its own: another class has {min(again)}"
            yield Contradiction(("brokers", at, "name"), fault, because)
        taken |= names
    joins = any(event.kind == "join" for event in scenario.events)
    if not joins and not any(group.joined for group in scenario.brokers):
        fault = "expected true for some class, or an event of kind join: there is never a broker"
        yield Contradiction(("brokers", 0, "joined"), fault, (*because, "events", "events.kind"))


def _times(scenario: Scenario) -> Iterator[Contradiction]:
    if scenario.warm_up_s >= scenario.duration_s:
        fault = f"expected less than duration_s ({scenario.duration_s:g}): nothing would be scored"
        yield Contradiction(("warm_up_s",), fault, ("duration_s",))
    for key in ("tick_interval_s", "round_interval_s"):
        steps = getattr(scenario.leader, key) / scenario.step_s
        if round(steps) < 1 or abs(steps - round(steps)) > _TOLERANCE * steps:
            fault = f"expected a multiple of step_s ({scenario.step_s:g})"
            yield Contradiction(("leader", key), fault, ("step_s",))
    for one in timing_contradictions(scenario.report, scenario.leader):
        because = tuple(".".join(key) for key in one.because)
        yield Contradiction((one.section, one.key), f"expected {one.expected}", because)


def _shadows(scenario: Scenario) -> Iterator[Contradiction]:
    if scenario.shedding.shadows:
        fault = "expected none: --strategy has each strategy simulated by itself"
        yield Contradiction(("shedding", "shadows"), fault)


def _expectations(scenario: Scenario) -> Iterator[Contradiction]:
    for at, one in enumerate(scenario.expect):
        path: TomlPath = ("expect", at)
        if one.score not in SCORE_NAMES:
            close = difflib.get_close_matches(one.score, SCORE_NAMES, 1)
            hint = f"; did you mean {close[0]}?" if close else ""
            fault = f"expected a score, one of {', '.join(SCORE_NAMES)}{hint}"
            yield Contradiction((*path, "score"), fault)
        if one.least is None and one.most is None:
            fault = "expected least or most beside it: without a bound it says nothing"
            yield Contradiction((*path, "score"), fault, ("expect.least", "expect.most"))
        elif one.least is not None and one.most is not None and one.least > one.most:
            fault = f"expected at least the value of least ({one.least:g})"
            yield Contradiction((*path, "most"), fault, ("expect.least",))
        for nth, pattern in enumerate(one.strategies):
            if not any(fnmatchcase(name, pattern) for name in PAIR_NAMES):
                fault = f"expected a pair, such as {PAIR_NAMES[0]}, or a pattern that means some"
                yield Contradiction((*path, "strategies", nth), fault)


def _strategy(
    section: str, name: str, settings: Mapping[str, SettingValue]
) -> Iterator[Contradiction]:
    """Yield an unknown strategy, and settings that it does not have."""
    path: TomlPath = (section,)
    try:
        kind: type = strategy_named(_STRATEGIES[section], name, "")
    except ConfigError as error:
        yield Contradiction((*path, "strategy"), _after_place(error.faults[0]))
        return
    first: dict[tuple[str, str], str] = {}
    for key, value in settings.items():
        at = (*path, "settings", key)
        try:
            filled(kind, {key: value}, "")
        except ConfigError as error:
            yield Contradiction(at, _after_place(error.faults[0]))
            continue
        group, setting = fields_of(kind)[key]
        if (same := first.setdefault((group, setting.name), key)) != key:
            yield Contradiction(at, f"expected it once: {same} is the same setting")


def _after_place(fault: str) -> str:
    """Return the text of a fault without its value, which the caller adds with its line."""
    return fault.partition("; ")[2]


MAX_GIB: Final = 16.0
"""Scenarios that need more are rejected: they would take days."""

# Measured with 100 to 1,000 brokers and 10,000 to 100,000 bundles, and rounded up.
_BUNDLE_BYTES: Final = 2_000
_PATTERN_BYTES: Final = 24
_TOPIC_BYTES: Final = 40
_BROKER_BYTES: Final = 12_000
_MOMENT_BYTES: Final = 100
_MOMENT_S: Final = 60.0


def bundles_of(scenario: Scenario) -> dict[Namespace, int]:
    """Return the number of bundles of each namespace of the loads."""
    return {load.namespace: load.bundles for load in reversed(scenario.load)}


def brokers_of(scenario: Scenario) -> int:
    """Return the number of brokers, including those that join later."""
    return sum(group.count for group in scenario.brokers)


def needed_gib(scenario: Scenario) -> float:
    """Return the approximate memory of a run in GiB, without its trace."""
    brokers = brokers_of(scenario)
    moments = scenario.duration_s / max(_MOMENT_S, scenario.step_s)
    bundles = sum(bundles_of(scenario).values()) * _BUNDLE_BYTES
    patterns = sum(load.bundles * len(load.patterns) for load in scenario.load) * _PATTERN_BYTES
    topics = max((load.topics for load in scenario.load), default=0) * _TOPIC_BYTES
    fleet = brokers * (_BROKER_BYTES + moments * _MOMENT_BYTES)
    return (bundles + patterns + topics + fleet) / 2**30


def size_contradictions(scenario: Scenario) -> Iterator[Contradiction]:
    """Yield a fault if the scenario needs more memory than allowed."""
    gib = needed_gib(scenario)
    if gib <= MAX_GIB:
        return
    brokers, bundles = brokers_of(scenario), sum(bundles_of(scenario).values())
    fault = (
        f"expected fewer brokers, bundles and topics, or a shorter time: {brokers} brokers and "
        f"{bundles} bundles for {scenario.duration_s:g} s take about {gib:.0f} GiB, and at most "
        f"{MAX_GIB:.0f} GiB are allowed"
    )
    yield Contradiction(("brokers",), fault, ("load", "load.bundles", "load.topics", "duration_s"))
