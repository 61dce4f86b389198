"""The summary of a scenario, and warnings on valid values that may be mistakes."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from loadmanager.core.ids import Namespace, parse_full_topic
from loadmanager.simulator.checks import brokers_of, bundles_of, needed_gib
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.scenario.events import Shift
from loadmanager.simulator.scenario_files import load_scenario
from loadmanager.simulator.scenario_text import read_text
from loadmanager.simulator.traces import Trace, read_trace


def checked_file(path: Path, *, trace: Path | None = None) -> Iterator[str]:
    """Yield the summary of a valid scenario, and a line for each warning.

    Args:
        path: the scenario.
        trace: recorded rates in place of its load.

    Raises:
        ScenarioError: the scenario or its trace has faults.
    """
    scenario = load_scenario(path, trace=trace)
    recorded = read_trace(scenario.trace) if scenario.trace is not None else None
    if recorded is not None and (faults := _absent_from_trace(path, scenario, recorded)):
        raise ScenarioError(faults)
    yield f"{path}: sound: {_size(scenario, recorded)}"
    for warning in _warnings(scenario, recorded):
        yield f"{path}: note: {warning}"


def _absent_from_trace(path: Path, scenario: Scenario, trace: Trace) -> list[str]:
    """Return faults of events that shift a namespace that is not in the trace."""
    namespaces = sorted({parse_full_topic(topic).namespace for topic in trace.topics})
    expected = f"expected a namespace of the trace: {', '.join(namespaces)}"
    text = read_text(path)
    return [
        f"{text.place(('events', at, 'namespace'))}; {expected}"
        for at, event in enumerate(scenario.events)
        if isinstance(event, Shift) and event.namespace not in namespaces
    ]


def _size(scenario: Scenario, trace: Trace | None) -> str:
    brokers, duration = brokers_of(scenario), f"{scenario.duration_s:g} s"
    if trace is not None:
        of_trace = f"{len(trace.topics)} topics at {len(trace.times_s)} times"
        return f"{brokers} brokers, {of_trace}, {duration}"
    bundles, gib = sum(bundles_of(scenario).values()), needed_gib(scenario)
    return f"{brokers} brokers, {bundles} bundles, {duration}; about {math.ceil(gib * 1024)} MiB"


def _warnings(scenario: Scenario, trace: Trace | None) -> Iterator[str]:
    topics: Counter[Namespace] = Counter()
    for load in scenario.load:
        topics[load.namespace] += load.topics
    for namespace, bundles in bundles_of(scenario).items():
        if topics[namespace] < bundles:
            count = f"{topics[namespace]} topics in {bundles} bundles"
            yield f"{namespace} has {count}, of which some are empty"
    if scenario.leader.round_interval_s > scenario.duration_s:
        yield f"the leader has no round: [leader] round_interval_s is {_more_than(scenario)}"
    if trace is not None and trace.times_s[-1] >= scenario.duration_s:
        yield f"what the trace has from {scenario.duration_s:g} s on is not replayed"
    elif trace is not None and _ends_early(trace, scenario.duration_s):
        yield f"the rates of the trace at {trace.times_s[-1]:g} s hold until the end"


def _more_than(scenario: Scenario) -> str:
    return f"{scenario.leader.round_interval_s:g}, and duration_s {scenario.duration_s:g}"


def _ends_early(trace: Trace, duration_s: float) -> bool:
    """Return whether the last rates are used longer than the previous ones."""
    if len(trace.times_s) == 1:
        return False
    before_s, last_s = trace.times_s[-2:].tolist()
    return bool(duration_s - last_s > last_s - before_s)
