"""Scenarios: brokers with hidden costs, loads over time, events, and expectations."""

from loadmanager.simulator.scenario.brokers import Background, BrokerClass, HiddenCost
from loadmanager.simulator.scenario.events import Event
from loadmanager.simulator.scenario.loads import Load
from loadmanager.simulator.scenario.model import (
    Expectation,
    HandOverSettings,
    NoiseSettings,
    Scenario,
)

__all__ = [
    "Background",
    "BrokerClass",
    "Event",
    "Expectation",
    "HandOverSettings",
    "HiddenCost",
    "Load",
    "NoiseSettings",
    "Scenario",
]
