"""How much memory a simulation takes, before it is begun."""

from collections.abc import Iterator
from typing import Final

from loadmanager.core.ids import Namespace
from loadmanager.simulator.errors import Contradiction
from loadmanager.simulator.scenario import Scenario

MAX_GIB: Final = 16.0
"""More is refused: a machine that has it would take days for such a scenario."""

# Measured with 100 to 1,000 brokers and 10,000 to 100,000 bundles, and rounded up.
_BUNDLE_BYTES: Final = 2_000
_PATTERN_BYTES: Final = 24
_TOPIC_BYTES: Final = 40
_BROKER_BYTES: Final = 12_000
_MOMENT_BYTES: Final = 100
_MOMENT_S: Final = 60.0


def bundles_of(scenario: Scenario) -> dict[Namespace, int]:
    """Return how many bundles each namespace of the loads has."""
    return {load.namespace: load.bundles for load in reversed(scenario.load)}


def brokers_of(scenario: Scenario) -> int:
    """Return how many brokers there are, those that join later included."""
    return sum(group.count for group in scenario.brokers)


def needed_gib(scenario: Scenario) -> float:
    """Return about how much memory a run takes, without its trace."""
    brokers = brokers_of(scenario)
    moments = scenario.duration_s / max(_MOMENT_S, scenario.step_s)
    bundles = sum(bundles_of(scenario).values()) * _BUNDLE_BYTES
    patterns = sum(load.bundles * len(load.patterns) for load in scenario.load) * _PATTERN_BYTES
    topics = max((load.topics for load in scenario.load), default=0) * _TOPIC_BYTES
    fleet = brokers * (_BROKER_BYTES + moments * _MOMENT_BYTES)
    return (bundles + patterns + topics + fleet) / 2**30


def size_contradictions(scenario: Scenario) -> Iterator[Contradiction]:
    """Yield what makes a scenario too large: its brokers over time, or its bundles."""
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
