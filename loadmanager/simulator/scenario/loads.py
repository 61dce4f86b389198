"""The loads of a scenario: topics of a namespace, how unlike they are, and how they change."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from loadmanager.config.forms import Form, Names, Section
from loadmanager.core.ids import Namespace, parse_namespace

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
    sigma: float = Field(
        1.0, ge=0, le=5, description="1: one in six is 2.7 times the median or more."
    )


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
    amplitude: float = Field(
        0.5, ge=0, le=1, description="0.5 goes from half to one and a half of the base."
    )
    peak_h: float = Field(
        14.0, ge=0, le=168, description="When it is highest, from the beginning of each period."
    )
    spread_h: float = Field(
        0.0, ge=0, le=84, description="How far the bundles' peaks lie from it, at most."
    )


class Jitter(Section):
    """Noise of the demand itself: log-normal, of ``fraction``, that lasts ``memory_s``.

    Its mean is 1. A ``memory_s`` of 0 draws again at each step.
    """

    kind: Literal["jitter"]
    fraction: float = Field(0.1, ge=0, le=5, description="The deviation of the factor.")
    memory_s: float = Field(
        60.0, ge=0, le=1e6, description="After this time a third of a deviation is left."
    )
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
    per_hour: float = Field(
        ge=-1000, le=1000, description="0.1 adds a tenth of the base each hour."
    )
    from_s: float = Field(0.0, ge=0, le=1e8, description="When it begins; before the end.")


class Growth(Section):
    """Doubles every ``doubling_h``, compound."""

    kind: Literal["growth"]
    doubling_h: float = Field(gt=0, le=1e6, description="In how many hours it doubles.")


class Steps(Section):
    """Times ``factors[i]`` from ``at_s[i]`` on; 1 before the first."""

    kind: Literal["steps"]
    at_s: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e8)], ...],
        Field(strict=False, min_length=1, description="Times that ascend; before the end."),
    ]
    factors: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e6)], ...],
        Field(strict=False, description="One for each time: times the base, from then on."),
    ]


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
    bundles: int = Field(
        16, ge=1, le=1_000_000, description="Bundles of the namespace, of equal ranges."
    )
    topics: int = Field(ge=1, le=10_000_000, description="How many topics.")
    msgs_in_per_s: float = Field(
        ge=0, le=1e12, description="Messages that are produced, of all topics together."
    )
    message_bytes: float = Field(1024.0, ge=0, le=1e9, description="How large a message is.")
    fan_out: float = Field(
        1.0, ge=0, le=1000, description="How many consumers get each message, on average."
    )
    producers_per_topic: float = Field(1.0, ge=0, le=1e6, description="On average.")
    consumers_per_topic: float = Field(1.0, ge=0, le=1e6, description="On average.")
    skew: Skew = Field(default_factory=Even, description="How unlike the topics are.")
    over: Literal["topics", "bundles"] = Field(
        "topics",
        description="What the skew is over: topics, which fall into bundles by their names, or "
        "bundles, whose topics are then even.",
    )
    patterns: Annotated[
        tuple[Pattern, ...], Field(strict=False, description="How it changes over time.")
    ] = ()
    placed_on: Names = Field(
        (),
        description="The brokers that have these bundles at the beginning, in turn; none for all "
        "that are joined.",
    )
    placed: Literal["in_turn", "random", "unowned"] = Field(
        "in_turn",
        description="How they are given out at the beginning; unowned are placed by the leader.",
    )
    anti_affinity_group: str = Field(
        "", description="Namespaces of one group are kept on different brokers as far as possible."
    )
