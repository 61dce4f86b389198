"""Scenarios: brokers with hidden costs, loads over time, events, and expectations."""

from loadmanager.simulator.scenario.loads import Load
from loadmanager.simulator.scenario.model import (
    Background,
    BrokerClass,
    Event,
    Expectation,
    HandOverSettings,
    HiddenCost,
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
