"""A scenario as a whole."""

from pathlib import Path
from typing import Annotated

from pydantic import Field

from loadmanager.config.balancing import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
)
from loadmanager.config.forms import Section
from loadmanager.simulator.scenario.brokers import BrokerClass
from loadmanager.simulator.scenario.events import Event
from loadmanager.simulator.scenario.expectations import Expectation
from loadmanager.simulator.scenario.loads import Load


class NoiseSettings(Section):
    """How inexact measurements are, and how long they take to be seen.

    Fractions are standard deviations of a log-normal factor with mean 1, drawn for each
    measurement. ``delay_s`` is from a report's writing to the leader's seeing it.
    """

    usage_fraction: float = Field(0.02, ge=0, le=2)
    rate_fraction: float = Field(0.01, ge=0, le=2)
    delay_s: float = Field(0.2, ge=0, le=3600)


class HandOverSettings(Section):
    """How long a bundle is in nobody's hands when it moves, and what clients feel of it.

    A client is interrupted from the old owner's release until it has reconnected:
    ``base_s`` and ``per_topic_s`` until the new owner serves, then ``reconnect_s``.
    ``order_s`` passes before the old owner lets go; the bundle is served meanwhile.
    """

    order_s: float = Field(0.1, ge=0, le=600)
    base_s: float = Field(0.05, ge=0, le=600)
    per_topic_s: float = Field(0.002, ge=0, le=60)
    reconnect_s: float = Field(0.2, ge=0, le=600)
    session_timeout_s: float = Field(
        30.0, ge=0, le=3600, description="How long a crashed broker still counts as there."
    )


class Scenario(Section):
    """Everything about a simulation but the strategies and the seed.

    The sections ``report``, ``leader``, ``shedding``, ``placement`` and ``planner`` are
    those of a sidecar's configuration. Scores leave out the first ``warm_up_s``.
    """

    title: str = Field(min_length=1, max_length=120)
    description: str = ""
    duration_s: float = Field(3600.0, gt=0, le=3.2e7)
    step_s: float = Field(10.0, ge=0.5, le=300)
    warm_up_s: float = Field(0.0, ge=0, le=3.2e7)
    seed: int = Field(1, ge=0, lt=2**32)
    brokers: Annotated[tuple[BrokerClass, ...], Field(strict=False, min_length=1)]
    load: Annotated[tuple[Load, ...], Field(strict=False)] = ()
    trace: Path | None = Field(
        None, strict=False, description="A file of recorded topic rates, beside this file."
    )
    trace_bundles: int = Field(
        16, ge=1, le=1_000_000, description="Bundles of each namespace of the trace."
    )
    events: Annotated[tuple[Event, ...], Field(strict=False)] = ()
    expect: Annotated[tuple[Expectation, ...], Field(strict=False)] = ()
    noise: NoiseSettings = Field(default_factory=NoiseSettings)
    hand_over: HandOverSettings = Field(default_factory=HandOverSettings)
    report: ReportSettings = Field(default_factory=ReportSettings)
    leader: LeaderSettings = Field(default_factory=LeaderSettings)
    shedding: SheddingSettings = Field(default_factory=SheddingSettings)
    placement: PlacementSettings = Field(default_factory=PlacementSettings)
    planner: PlannerSettings = Field(default_factory=PlannerSettings)

    @property
    def broker_names(self) -> tuple[str, ...]:
        """The names of all brokers, those that join later included."""
        return tuple(name for group in self.brokers for name in group.brokers)
