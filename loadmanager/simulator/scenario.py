"""Scenarios: brokers with hidden costs, loads over time, isolation policies, events, expectations.

Events name brokers ``class-number``, or all of a ``class``.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field

from loadmanager.config.forms import Form, Names, Section, Word
from loadmanager.config.sections import (
    LeaderSettings,
    PlacementSettings,
    PlannerSettings,
    ReportSettings,
    SheddingSettings,
)
from loadmanager.core.bounds import RATE
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BrokerId, Namespace, parse_namespace
from loadmanager.core.policies import IsolationPolicy, Policies, checked


class ScenarioError(LoadManagerError):
    """A scenario or trace cannot be simulated. ``faults`` are all its faults, as texts.

    Each contains the file, the key or the line, the value, and what was expected.
    """

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)

    def __reduce__(self) -> tuple[type["ScenarioError"], tuple[Sequence[str]]]:
        """Support pickling: worker processes raise it as well."""
        return type(self), (self.faults,)


NamespaceName = Annotated[
    Namespace,
    AfterValidator(parse_namespace),
    Form('a namespace "tenant/name" of letters, digits and -=:._'),
]


class Even(Section):
    """All topics have the same traffic."""

    kind: Literal["even"] = "even"


class Zipf(Section):
    """The k-th largest topic has ``1 / k**exponent`` of the largest; which is drawn."""

    kind: Literal["zipf"]
    exponent: float = Field(1.0, ge=0, le=5, description="0 is even; 1 is the usual one.")


class LogNormal(Section):
    """Topics' traffic is log-normal; ``sigma`` is the deviation of its logarithm."""

    kind: Literal["log_normal"]
    sigma: float = Field(1.0, ge=0, le=5)
    """1: one in six is 2.7 times the median or more."""


class Hot(Section):
    """``topics`` of them have ``share`` of the traffic together, the others are even."""

    kind: Literal["hot"]
    topics: int = Field(1, ge=1, le=1_000_000, description="How many are hot.")
    share: float = Field(0.5, gt=0, le=1, description="How much of the traffic is theirs.")


Skew = Annotated[Even | Zipf | LogNormal | Hot, Field(discriminator="kind")]

Each = Literal["load", "bundle"]
"""What a pattern is the same for: the whole load (its topics are correlated), or one bundle."""


class Daily(Section):
    """``1 + amplitude * cos``, highest at ``peak_h`` hours of each day or week.

    ``spread_h`` moves the peak of each bundle by up to so much either way.
    """

    kind: Literal["day", "week"]
    amplitude: float = Field(0.5, ge=0, le=1)
    """0.5 goes from half to one and a half of the base."""
    peak_h: float = Field(14.0, ge=0, le=168)
    """When it is highest, from the beginning of each period."""
    spread_h: float = Field(0.0, ge=0, le=84)
    """How far the bundles' peaks lie from it, at most."""


class Jitter(Section):
    """Noise of the demand itself: log-normal, of ``fraction``, that lasts ``memory_s``.

    Its mean is 1. A ``memory_s`` of 0 draws again at each step.
    """

    kind: Literal["jitter"]
    fraction: float = Field(0.1, ge=0, le=5, description="The deviation of the factor.")
    memory_s: float = Field(60.0, ge=0, le=1e6)
    """After this time a third of a deviation is left."""
    each: Each = Field("bundle", description="For what it is drawn: every bundle, or the load.")


class Burst(Section):
    """Times ``factor`` for ``length_s``, on average every ``every_s``, at drawn moments."""

    kind: Literal["burst"]
    factor: float = Field(3.0, ge=0, le=1000, description="Times the base, meanwhile.")
    length_s: float = Field(60.0, gt=0, le=1e6, description="How long each takes.")
    every_s: float = Field(3600.0, gt=0, le=1e7, description="From one to the next, on average.")
    each: Each = Field("bundle", description="For what it is drawn: every bundle, or the load.")


class Flash(Section):
    """A flash crowd: to ``factor`` within ``rise_s``, held, and back within ``fall_s``."""

    kind: Literal["flash"]
    at_s: float = Field(ge=0, le=1e8, description="When it begins; before the end.")
    factor: float = Field(5.0, ge=0, le=1000, description="Times the base, at its height.")
    rise_s: float = Field(60.0, ge=0, le=1e6, description="How long it rises.")
    hold_s: float = Field(600.0, ge=0, le=1e7, description="How long it stays there.")
    fall_s: float = Field(600.0, ge=0, le=1e7, description="How long it falls.")


class Trend(Section):
    """Grows by ``per_hour`` of the beginning's traffic each hour, or shrinks; never below 0."""

    kind: Literal["trend"]
    per_hour: float = Field(ge=-1000, le=1000)
    """0.1 adds a tenth of the base each hour."""
    from_s: float = Field(0.0, ge=0, le=1e8, description="When it begins; before the end.")


class Growth(Section):
    """Doubles every ``doubling_h``, compound."""

    kind: Literal["growth"]
    doubling_h: float = Field(gt=0, le=1e6, description="In how many hours it doubles.")


class Steps(Section):
    """Times ``factors[i]`` from ``at_s[i]`` on; 1 before the first."""

    kind: Literal["steps"]
    at_s: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e8)], ...], Field(strict=False, min_length=1)
    ]
    """Times that ascend; before the end."""
    factors: Annotated[tuple[Annotated[float, Field(ge=0, le=1e6)], ...], Field(strict=False)]
    """One for each time: times the base, from then on."""


Pattern = Annotated[
    Daily | Jitter | Burst | Flash | Trend | Growth | Steps, Field(discriminator="kind")
]


class Load(Section):
    """The topics of a namespace that behave alike. The patterns multiply.

    Several loads may share a namespace; its ``bundles`` are then the same in all, and the
    first one says where they are at the beginning.
    Rates are of the whole load, before any pattern; "out" is ``fan_out`` times "in".
    """

    namespace: NamespaceName = Field(description="Where its topics are.")
    bundles: int = Field(16, ge=1, le=1_000_000)
    """Bundles of the namespace, of equal ranges."""
    topics: int = Field(ge=1, le=10_000_000, description="How many topics.")
    msgs_in_per_s: float = Field(ge=0, le=1e12)
    """Messages that are produced, of all topics together."""
    message_bytes: float = Field(1024.0, ge=0, le=1e9, description="How large a message is.")
    fan_out: float = Field(1.0, ge=0, le=1000)
    """How many consumers get each message, on average."""
    producers_per_topic: float = Field(1.0, ge=0, le=1e6, description="On average.")
    consumers_per_topic: float = Field(1.0, ge=0, le=1e6, description="On average.")
    skew: Skew = Field(default_factory=Even, description="How unlike the topics are.")
    over: Literal["topics", "bundles"] = "topics"
    """What the skew is over: topics, which fall into bundles by their names, or bundles, whose
    topics are then even."""
    patterns: Annotated[tuple[Pattern, ...], Field(strict=False)] = ()
    """How it changes over time."""
    placed_on: Names = ()
    """The brokers that have these bundles at the beginning, in turn; none for all that are
    joined."""
    placed: Literal["in_turn", "random", "unowned"] = "in_turn"
    """How they are given out at the beginning; unowned are placed by the leader."""
    anti_affinity_group: str = ""
    """Namespaces of one group are kept on different brokers as far as possible."""


Time = Annotated[
    float, Field(ge=0, le=1e8, description="When, from the beginning; before the end.")
]
Brokers = Annotated[
    tuple[str, ...],
    Field(
        strict=False,
        min_length=1,
        description="To which brokers: `class-number`, or the name of a class for all of it.",
    ),
]


class Membership(Section):
    """Brokers come or go.

    - ``join``: brokers that are not there start and register, empty.
    - ``leave``: brokers stop in an orderly way without a drain: their locks are free at once.
    - ``crash``: brokers die: their bundles are unowned once their sessions have ended.
    - ``drain``: brokers are emptied by the leader, and leave once they have nothing any more.
    """

    kind: Literal["join", "leave", "crash", "drain"]
    at_s: Time
    brokers: Brokers


class Restart(Section):
    """Brokers restart one after the other, ``every_s`` apart: drained or not, then away.

    The next begins no sooner than the one before is back.
    """

    kind: Literal["restart"]
    at_s: Time
    brokers: Brokers
    every_s: float = Field(300.0, ge=0, le=1e6)
    """From the beginning of one to that of the next, at least."""
    down_s: float = Field(60.0, gt=0, le=1e6, description="How long each is away.")
    drained: bool = Field(default=True, description="Whether each is emptied before.")


class Noise(Section):
    """Other processes on brokers' hosts take ``cores`` more, for ``for_s``."""

    kind: Literal["noise"]
    at_s: Time
    brokers: Brokers
    cores: float = Field(gt=0, le=4096, description="How much CPU they take on each host.")
    for_s: float = Field(gt=0, le=1e8, description="How long.")


class Silence(Section):
    """Brokers' agents publish nothing for ``for_s``; the brokers serve on."""

    kind: Literal["silence"]
    at_s: Time
    brokers: Brokers
    for_s: float = Field(gt=0, le=1e8, description="How long.")


class Shift(Section):
    """The loads of a namespace are multiplied by ``factor`` from now on."""

    kind: Literal["shift"]
    at_s: Time
    namespace: NamespaceName = Field(description="Of which namespace.")
    factor: float = Field(ge=0, le=1e6)
    """Times what it was; of several shifts the factors multiply."""


Event = Annotated[Membership | Restart | Noise | Silence | Shift, Field(discriminator="kind")]


class HiddenCost(Section):
    """The cost of work on a broker of a class, hidden from strategies.

    Messages and bytes count in and out alike.
    """

    cpu_us_per_msg: float = Field(20.0, ge=0, le=1e6, description="CPU for one message.")
    cpu_ns_per_byte: float = Field(2.0, ge=0, le=1e6, description="CPU for one byte.")
    cpu_us_per_topic_s: float = Field(50.0, ge=0, le=1e6)
    """CPU each second for having a topic."""
    cpu_us_per_connection_s: float = Field(20.0, ge=0, le=1e6)
    """CPU each second for having a producer or consumer."""
    wire_bytes_per_msg: float = Field(60.0, ge=0, le=1e6)
    """Bytes on the network for a message besides its content."""
    memory_kib_per_topic: float = Field(64.0, ge=0, le=1e9, description="Memory for a topic.")
    memory_kib_per_connection: float = Field(128.0, ge=0, le=1e9)
    """Memory for a producer or consumer."""
    memory_kib_per_msg_per_s: float = Field(8.0, ge=0, le=1e9)
    """Memory for each message per second, as buffers and cache."""


class Background(Section):
    """What other processes on a broker's host use; a strategy sees it only in the usage."""

    cores: float = Field(0.0, ge=0, le=4096, description="CPU.")
    network_in_mbit_per_s: float = Field(0.0, ge=0, le=1e6)
    """What arrives on the network."""
    network_out_mbit_per_s: float = Field(0.0, ge=0, le=1e6)
    """What leaves on the network."""
    memory_mib: float = Field(256.0, ge=0, le=1e8, description="Memory.")


class BrokerClass(Section):
    """``count`` brokers that are alike: ``{name}-1`` and so on."""

    name: Word
    """Its brokers are `name-1`, `name-2` and so on; the name stands for all of them."""
    count: int = Field(ge=1, le=100_000, description="How many.")
    cores: float = Field(8.0, gt=0, le=4096, description="CPU of each.")
    network_mbit_per_s: float = Field(10_000.0, gt=0, le=1e7)
    """Network of each, in and out."""
    memory_mib: float = Field(16_384.0, gt=0, le=1e8, description="Memory of each.")
    cost: HiddenCost = Field(default_factory=HiddenCost)
    """The cost of their work, hidden from strategies."""
    background: Background = Field(default_factory=Background)
    """What other processes on their hosts use."""
    joined: bool = Field(default=True, description="Whether they are there from the beginning.")
    failure_domain: str = Field("", description="The failure domain that they are in, if any.")

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(f"{self.name}-{number}" for number in range(1, self.count + 1))


PORT: Final = 8080
"""The port of a modelled broker; its id is ``name:port``."""

NamePattern = Annotated[str, AfterValidator(checked), Form("a regular expression")]


class Isolation(Section):
    """An isolation policy: namespaces that only certain brokers serve, and no others there.

    All are regular expressions that must match as a whole: namespaces the name, brokers
    `class-number`.
    """

    name: str = Field(min_length=1, description="Of the policy.")
    namespaces: Annotated[tuple[NamePattern, ...], Field(strict=False, min_length=1)]
    """The namespaces that it is about."""
    primary: Annotated[tuple[NamePattern, ...], Field(strict=False, min_length=1)]
    """The brokers that serve them."""
    secondary: Annotated[tuple[NamePattern, ...], Field(strict=False)] = ()
    """Brokers that help while too few primary ones are fit."""
    min_limit: int = Field(1, ge=0, le=100_000, description="How many primary ones are enough.")
    usage_threshold: float = Field(1.0, ge=0, le=1)
    """Usage up to which a primary broker is fit."""


class HiddenSettings(Section):
    """The costs of work beyond its rates, hidden from strategies.

    The defaults are assumptions, not measurements. A bundle at a new owner has cold caches
    for ``cold_s``. Its clients connect again, which takes CPU of the new owner within
    ``reconnect_spread_s``. Traffic that was not served is sent later, as room allows: at
    most that of ``backlog_s``, and at most ``catch_up_factor`` times as fast as it came.
    """

    bundle_cpu_spread: float = Field(0.2, ge=0, le=3)
    """How unlike bundles with the same rates are in their CPU: the deviation of a log-normal factor
    with mean 1."""
    cpu_growth: float = Field(0.1, ge=0, le=5)
    """How much more CPU a full broker needs than its work says: at the fraction u of its CPU it
    needs u times 1 + u times this."""
    cold_cpu_factor: float = Field(1.5, ge=1, le=100)
    """CPU of a bundle that has just arrived, as a multiple of its usual; it falls evenly to 1."""
    cold_s: float = Field(60.0, ge=0, le=86_400, description="How long that takes.")
    reconnect_cpu_ms: float = Field(5.0, ge=0, le=10_000)
    """CPU of the new owner for each client that connects."""
    reconnect_spread_s: float = Field(10.0, gt=0, le=3600)
    """How long it takes until all have connected."""
    backlog_s: float = Field(30.0, ge=0, le=86_400)
    """How much waits at most of what was not served; producers give up the rest."""
    catch_up_factor: float = Field(1.0, ge=0, le=100)
    """How fast what waited is sent, beside what comes."""


Patterns = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class Expectation(Section):
    """A score within bounds, the median over the seeds.

    ``strategies`` are pairs ``shedder+placement`` by our short names; ``*`` stands for
    anything. Without ``mode`` it holds for both. With ``known_failure`` it states how an
    algorithm fails, in words: the bounds then say that the failure happens.
    """

    score: str = Field(description="Which score, of those below.")
    least: float | None = Field(None, ge=-RATE.most, le=RATE.most)
    """It is at least this."""
    most: float | None = Field(None, ge=-RATE.most, le=RATE.most, description="It is at most this.")
    strategies: Patterns = Field(("*",), description="Of which pairs it is expected.")
    mode: Literal["safe", "parity"] | None = None
    """In which mode of the planner; without it, in both."""
    known_failure: str = ""
    """How the algorithm fails, in words, if that is what is expected."""


class NoiseSettings(Section):
    """How inexact measurements are, and how long they take to be seen.

    Fractions are standard deviations of a log-normal factor with mean 1, drawn for each
    measurement. ``delay_s`` is from a report's writing to the leader's seeing it.
    """

    usage_fraction: float = Field(0.02, ge=0, le=2, description="Of a broker's usage.")
    rate_fraction: float = Field(0.01, ge=0, le=2, description="Of a bundle's rates.")
    delay_s: float = Field(0.2, ge=0, le=3600)
    """From a report's writing to the leader's seeing it."""
    usage_lags: bool = False
    """Whether usage is of the time before the last sample."""


class HandOverSettings(Section):
    """How long a bundle has no owner when it moves, and what clients feel of it.

    A client is interrupted from the old owner's release until it has reconnected:
    ``base_s`` and ``per_topic_s`` until the new owner serves, then ``reconnect_s``.
    ``order_s`` passes before the old owner releases the bundle, which is served meanwhile.
    """

    order_s: float = Field(0.1, ge=0, le=600)
    """From the order until the old owner releases the bundle."""
    base_s: float = Field(0.05, ge=0, le=600)
    """From then until the new owner serves, whatever it is."""
    per_topic_s: float = Field(0.002, ge=0, le=60)
    """Besides, for each topic of the bundle."""
    reconnect_s: float = Field(0.2, ge=0, le=600)
    """From then until its clients are connected."""
    session_timeout_s: float = Field(30.0, ge=0, le=3600)
    """How long a crashed broker still counts as there."""


class Scenario(Section):
    """Everything about a simulation but the strategies and the seed.

    The sections ``report``, ``leader``, ``shedding``, ``placement`` and ``planner`` are
    those of a sidecar's configuration. Scores leave out the first ``warm_up_s``.
    """

    title: str = Field(min_length=1, max_length=120, description="A few words.")
    description: str = Field("", description="A sentence for lists and reports.")
    duration_s: float = Field(3600.0, gt=0, le=3.2e7, description="How long it goes on.")
    step_s: float = Field(10.0, ge=0.5, le=300)
    """How exactly it is simulated. The leader's intervals are multiples of it."""
    warm_up_s: float = Field(0.0, ge=0, le=3.2e7)
    """How much of the beginning the scores leave out."""
    seed: int = Field(1, ge=0, lt=2**32)
    """Of all that is drawn. The same seed gives the same bytes."""
    brokers: Annotated[tuple[BrokerClass, ...], Field(strict=False, min_length=1)]
    """Classes of brokers that are alike."""
    load: Annotated[tuple[Load, ...], Field(strict=False)] = ()
    """What is asked of them; or a trace."""
    trace: Path | None = Field(None, strict=False)
    """A file of recorded topic rates, beside this file."""
    trace_bundles: int = Field(16, ge=1, le=1_000_000)
    """Bundles of each namespace of the trace."""
    trace_interpolated: bool = False
    """Whether rates go evenly from one time of the trace to the next; else they hold."""
    trace_patterns: Annotated[tuple[Pattern, ...], Field(strict=False)] = ()
    """How the rates of the trace change besides."""
    isolation: Annotated[tuple[Isolation, ...], Field(strict=False)] = ()
    """Which brokers may serve which namespaces."""
    events: Annotated[tuple[Event, ...], Field(strict=False)] = ()
    """What happens meanwhile."""
    expect: Annotated[tuple[Expectation, ...], Field(strict=False)] = ()
    """What the scores will be."""
    hidden: HiddenSettings = Field(default_factory=HiddenSettings)
    """What work costs beyond its rates."""
    noise: NoiseSettings = Field(default_factory=NoiseSettings)
    """How inexact measurements are."""
    hand_over: HandOverSettings = Field(default_factory=HandOverSettings)
    """How long bundles are under way."""
    report: ReportSettings = Field(default_factory=ReportSettings)
    """When brokers report."""
    leader: LeaderSettings = Field(default_factory=LeaderSettings)
    """When the leader decides."""
    shedding: SheddingSettings = Field(default_factory=SheddingSettings)
    """Which bundles leave a broker."""
    placement: PlacementSettings = Field(default_factory=PlacementSettings)
    """Which broker takes a bundle."""
    planner: PlannerSettings = Field(default_factory=PlannerSettings)
    """How far strategies are trusted."""

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(name for group in self.brokers for name in group.brokers)


def policies_of(scenario: Scenario) -> Policies:
    """Return the policies of a scenario, as a leader has them."""
    groups: dict[Namespace, str] = {}
    for load in scenario.load:
        if load.anti_affinity_group:
            groups.setdefault(load.namespace, load.anti_affinity_group)
    return Policies(
        isolation={
            one.name: IsolationPolicy(**one.model_dump(exclude={"name"}))
            for one in scenario.isolation
        },
        anti_affinity=groups,
        domains={
            BrokerId(f"{broker}:{PORT}"): group.failure_domain
            for group in scenario.brokers
            if group.failure_domain
            for broker in group.brokers
        },
    )
