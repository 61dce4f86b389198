"""Checks of the loads of a scenario against each other and its brokers."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from loadmanager.core.ids import Namespace
from loadmanager.simulator.errors import Contradiction
from loadmanager.simulator.event_checks import BROKERS, members, unknown_brokers
from loadmanager.simulator.scenario import Load, Scenario
from loadmanager.simulator.scenario.loads import Burst, Daily, Flash, Hot, Pattern, Steps, Trend
from loadmanager.simulator.toml_lines import TomlPath

_WHOLE: Final = ("duration_s",)
_DAY_H: Final = 24
_WEEK_H: Final = 168


def load_contradictions(scenario: Scenario) -> Iterator[Contradiction]:
    """Yield loads that contradict each other, their own patterns, or the brokers."""
    if scenario.trace is None and not scenario.load:
        fault = "expected [[load]] sections, or a trace: there is nothing to do"
        yield Contradiction(("load",), fault, ("trace", "load"))
    elif scenario.trace is not None and scenario.load:
        fault = "expected none beside [[load]] sections: a trace is the whole load"
        yield Contradiction(("trace",), fault, ("load",))
    elif scenario.trace is not None and not scenario.trace.is_file():
        yield Contradiction(("trace",), f"expected a file; there is no {scenario.trace}")
    for nth, pattern in enumerate(scenario.trace_patterns):
        yield from _pattern(("trace_patterns", nth), pattern, scenario.duration_s)
    first: dict[Namespace, Load] = {}
    for at, load in enumerate(scenario.load):
        path: TomlPath = ("load", at)
        yield from _of_one_namespace(path, load, first.setdefault(load.namespace, load))
        yield from _skew((*path, "skew"), load)
        yield from _placing(path, load, scenario)
        for nth, pattern in enumerate(load.patterns):
            yield from _pattern((*path, "patterns", nth), pattern, scenario.duration_s)


def _of_one_namespace(path: TomlPath, load: Load, first: Load) -> Iterator[Contradiction]:
    """Yield contradictions between a load and the ``first`` one of its namespace.

    The initial placement is only needed in the first one.
    """
    if load.bundles != first.bundles:
        fault = f"expected {first.bundles}, as in the first load of {load.namespace}"
        yield Contradiction((*path, "bundles"), fault, ("load.bundles", "load.namespace"))
    fault = f"expected it in the first load of {load.namespace}, or the same there"
    if load.placed_on and load.placed_on != first.placed_on:
        yield Contradiction((*path, "placed_on"), fault, ("load.placed_on", "load.namespace"))
    if "placed" in load.model_fields_set and load.placed != first.placed:
        yield Contradiction((*path, "placed"), fault, ("load.placed", "load.namespace"))


def _skew(path: TomlPath, load: Load) -> Iterator[Contradiction]:
    if isinstance(load.skew, Hot):
        among = load.topics if load.over == "topics" else min(load.topics, load.bundles)
        if load.skew.topics > among:
            fault = f"expected at most {among}, the {load.over} of the load"
            yield Contradiction(
                (*path, "topics"), fault, ("load.topics", "load.over", "load.bundles")
            )


def _placing(path: TomlPath, load: Load, scenario: Scenario) -> Iterator[Contradiction]:
    known = members(scenario)
    there = {name for group in scenario.brokers if group.joined for name in group.brokers}
    yield from unknown_brokers((*path, "placed_on"), load.placed_on, known)
    for at, name in enumerate(load.placed_on):
        if not there.issuperset(known.get(name, ())):
            fault = "expected brokers that are there from the beginning: joined = true"
            yield Contradiction((*path, "placed_on", at), fault, BROKERS)
    if load.placed_on and load.placed == "unowned":
        fault = 'expected none, as placed = "unowned" says that no broker has these bundles'
        yield Contradiction((*path, "placed_on"), fault, ("load.placed",))


def _pattern(path: TomlPath, pattern: Pattern, duration_s: float) -> Iterator[Contradiction]:
    before = f"expected a time before the end, duration_s = {duration_s:g}"
    match pattern:
        case Flash(at_s=at_s) if at_s >= duration_s:
            yield Contradiction((*path, "at_s"), before, _WHOLE)
        case Trend(from_s=from_s) if from_s >= duration_s:
            yield Contradiction((*path, "from_s"), before, _WHOLE)
        case Daily(kind=kind, peak_h=peak_h, spread_h=spread_h):
            period_h = _DAY_H if kind == "day" else _WEEK_H
            if peak_h >= period_h:
                fault = f"expected less than {period_h}, the hours of a {kind}"
                yield Contradiction((*path, "peak_h"), fault, ("load.patterns.kind",))
            if spread_h > period_h / 2:
                fault = f"expected at most {period_h // 2}, half of a {kind}"
                yield Contradiction((*path, "spread_h"), fault, ("load.patterns.kind",))
        case Burst(length_s=length_s, every_s=every_s) if every_s < length_s:
            fault = f"expected at least length_s ({length_s:g}): a burst ends before the next"
            yield Contradiction((*path, "every_s"), fault, ("load.patterns.length_s",))
        case Steps():
            yield from _steps(path, pattern, before, duration_s)
        case _:
            pass


def _steps(path: TomlPath, steps: Steps, before: str, duration_s: float) -> Iterator[Contradiction]:
    for at, (earlier, later) in enumerate(pairwise(steps.at_s), start=1):
        if later <= earlier:
            fault = f"expected times that ascend: more than {earlier:g}"
            yield Contradiction((*path, "at_s", at), fault)
    if steps.at_s[-1] >= duration_s:
        yield Contradiction((*path, "at_s", len(steps.at_s) - 1), before, _WHOLE)
    if len(steps.factors) != len(steps.at_s):
        fault = f"expected {len(steps.at_s)} factors, one for each time of at_s"
        yield Contradiction((*path, "factors"), fault, ("load.patterns.at_s",))
