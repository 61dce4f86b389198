"""A scenario as a whole."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from loadmanager.config.balancing import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
)
from loadmanager.config.forms import Section
from loadmanager.core.bounds import RATE
from loadmanager.simulator.scenario.brokers import BrokerClass
from loadmanager.simulator.scenario.events import Event
from loadmanager.simulator.scenario.loads import Load, Pattern
from loadmanager.simulator.scenario.policies import Isolation


class HiddenSettings(Section):
    """The costs of work beyond its rates, hidden from strategies.

    The defaults are assumptions, not measurements. A bundle at a new owner has cold caches
    for ``cold_s``. Its clients connect again, which takes CPU of the new owner within
    ``reconnect_spread_s``. Traffic that was not served is sent later, as room allows: at
    most that of ``backlog_s``, and at most ``catch_up_factor`` times as fast as it came.
    """

    bundle_cpu_spread: float = Field(
        0.2,
        ge=0,
        le=3,
        description="How unlike bundles with the same rates are in their CPU: the deviation of a "
        "log-normal factor with mean 1.",
    )
    cpu_growth: float = Field(
        0.1,
        ge=0,
        le=5,
        description="How much more CPU a full broker needs than its work says: at the fraction u "
        "of its CPU it needs u times 1 + u times this.",
    )
    cold_cpu_factor: float = Field(
        1.5,
        ge=1,
        le=100,
        description="CPU of a bundle that has just arrived, as a multiple of its usual; it falls "
        "evenly to 1.",
    )
    cold_s: float = Field(60.0, ge=0, le=86_400, description="How long that takes.")
    reconnect_cpu_ms: float = Field(
        5.0, ge=0, le=10_000, description="CPU of the new owner for each client that connects."
    )
    reconnect_spread_s: float = Field(
        10.0, gt=0, le=3600, description="How long it takes until all have connected."
    )
    backlog_s: float = Field(
        30.0,
        ge=0,
        le=86_400,
        description="How much waits at most of what was not served; producers give up the rest.",
    )
    catch_up_factor: float = Field(
        1.0, ge=0, le=100, description="How fast what waited is sent, beside what comes."
    )


Patterns = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class Expectation(Section):
    """A score within bounds, the median over the seeds.

    ``strategies`` are pairs ``shedder+placement`` by our short names; ``*`` stands for
    anything. Without ``mode`` it holds for both. With ``known_failure`` it states how an
    algorithm fails, in words: the bounds then say that the failure happens.
    """

    score: str = Field(description="Which score, of those below.")
    least: float | None = Field(
        None, ge=-RATE.most, le=RATE.most, description="It is at least this."
    )
    most: float | None = Field(None, ge=-RATE.most, le=RATE.most, description="It is at most this.")
    strategies: Patterns = Field(("*",), description="Of which pairs it is expected.")
    mode: Literal["safe", "parity"] | None = Field(
        None, description="In which mode of the planner; without it, in both."
    )
    known_failure: str = Field(
        "", description="How the algorithm fails, in words, if that is what is expected."
    )


class NoiseSettings(Section):
    """How inexact measurements are, and how long they take to be seen.

    Fractions are standard deviations of a log-normal factor with mean 1, drawn for each
    measurement. ``delay_s`` is from a report's writing to the leader's seeing it.
    """

    usage_fraction: float = Field(0.02, ge=0, le=2, description="Of a broker's usage.")
    rate_fraction: float = Field(0.01, ge=0, le=2, description="Of a bundle's rates.")
    delay_s: float = Field(
        0.2, ge=0, le=3600, description="From a report's writing to the leader's seeing it."
    )
    usage_lags: bool = Field(
        default=False, description="Whether usage is of the time before the last sample."
    )


class HandOverSettings(Section):
    """How long a bundle has no owner when it moves, and what clients feel of it.

    A client is interrupted from the old owner's release until it has reconnected:
    ``base_s`` and ``per_topic_s`` until the new owner serves, then ``reconnect_s``.
    ``order_s`` passes before the old owner releases the bundle, which is served meanwhile.
    """

    order_s: float = Field(
        0.1, ge=0, le=600, description="From the order until the old owner releases the bundle."
    )
    base_s: float = Field(
        0.05, ge=0, le=600, description="From then until the new owner serves, whatever it is."
    )
    per_topic_s: float = Field(
        0.002, ge=0, le=60, description="Besides, for each topic of the bundle."
    )
    reconnect_s: float = Field(
        0.2, ge=0, le=600, description="From then until its clients are connected."
    )
    session_timeout_s: float = Field(
        30.0, ge=0, le=3600, description="How long a crashed broker still counts as there."
    )


class Scenario(Section):
    """Everything about a simulation but the strategies and the seed.

    The sections ``report``, ``leader``, ``shedding``, ``placement`` and ``planner`` are
    those of a sidecar's configuration. Scores leave out the first ``warm_up_s``.
    """

    title: str = Field(min_length=1, max_length=120, description="A few words.")
    description: str = Field("", description="A sentence for lists and reports.")
    duration_s: float = Field(3600.0, gt=0, le=3.2e7, description="How long it goes on.")
    step_s: float = Field(
        10.0,
        ge=0.5,
        le=300,
        description="How exactly it is simulated. The leader's intervals are multiples of it.",
    )
    warm_up_s: float = Field(
        0.0, ge=0, le=3.2e7, description="How much of the beginning the scores leave out."
    )
    seed: int = Field(
        1, ge=0, lt=2**32, description="Of all that is drawn. The same seed gives the same bytes."
    )
    brokers: Annotated[
        tuple[BrokerClass, ...],
        Field(strict=False, min_length=1, description="Classes of brokers that are alike."),
    ]
    load: Annotated[
        tuple[Load, ...], Field(strict=False, description="What is asked of them; or a trace.")
    ] = ()
    trace: Path | None = Field(
        None, strict=False, description="A file of recorded topic rates, beside this file."
    )
    trace_bundles: int = Field(
        16, ge=1, le=1_000_000, description="Bundles of each namespace of the trace."
    )
    trace_interpolated: bool = Field(
        default=False,
        description="Whether rates go evenly from one time of the trace to the next; else they "
        "hold.",
    )
    trace_patterns: Annotated[
        tuple[Pattern, ...],
        Field(strict=False, description="How the rates of the trace change besides."),
    ] = ()
    isolation: Annotated[
        tuple[Isolation, ...],
        Field(strict=False, description="Which brokers may serve which namespaces."),
    ] = ()
    events: Annotated[
        tuple[Event, ...], Field(strict=False, description="What happens meanwhile.")
    ] = ()
    expect: Annotated[
        tuple[Expectation, ...], Field(strict=False, description="What the scores will be.")
    ] = ()
    hidden: HiddenSettings = Field(
        default_factory=HiddenSettings, description="What work costs beyond its rates."
    )
    noise: NoiseSettings = Field(
        default_factory=NoiseSettings, description="How inexact measurements are."
    )
    hand_over: HandOverSettings = Field(
        default_factory=HandOverSettings, description="How long bundles are under way."
    )
    report: ReportSettings = Field(
        default_factory=ReportSettings, description="When brokers report."
    )
    leader: LeaderSettings = Field(
        default_factory=LeaderSettings, description="When the leader decides."
    )
    shedding: SheddingSettings = Field(
        default_factory=SheddingSettings, description="Which bundles leave a broker."
    )
    placement: PlacementSettings = Field(
        default_factory=PlacementSettings, description="Which broker takes a bundle."
    )
    planner: PlannerSettings = Field(
        default_factory=PlannerSettings, description="How far strategies are trusted."
    )

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(name for group in self.brokers for name in group.brokers)
