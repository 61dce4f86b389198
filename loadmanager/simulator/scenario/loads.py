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
    exponent: float = Field(1.0, ge=0, le=5)


class LogNormal(Section):
    """Topics' traffic is log-normal; ``sigma`` is the deviation of its logarithm."""

    kind: Literal["log_normal"]
    sigma: float = Field(1.0, ge=0, le=5)


class Hot(Section):
    """``topics`` of them have ``share`` of the traffic together, the others are even."""

    kind: Literal["hot"]
    topics: int = Field(1, ge=1, le=1_000_000)
    share: float = Field(0.5, gt=0, le=1)


Skew = Annotated[Even | Zipf | LogNormal | Hot, Field(discriminator="kind")]

Each = Literal["load", "bundle"]
"""What a pattern is the same for: the whole load (its topics are correlated), or one bundle."""


class Daily(Section):
    """``1 + amplitude * cos``, highest at ``peak_h`` of each ``period_h``: a day, a week.

    ``spread_h`` moves the peak of each bundle by up to so much either way.
    """

    kind: Literal["day", "week"]
    amplitude: float = Field(0.5, ge=0, le=1)
    peak_h: float = Field(14.0, ge=0, le=168)
    spread_h: float = Field(0.0, ge=0, le=84)


class Jitter(Section):
    """Noise of the demand itself: log-normal, of ``fraction``, that lasts ``memory_s``.

    Its mean is 1. A ``memory_s`` of 0 draws anew at each step.
    """

    kind: Literal["jitter"]
    fraction: float = Field(0.1, ge=0, le=5)
    memory_s: float = Field(60.0, ge=0, le=1e6)
    each: Each = "bundle"


class Burst(Section):
    """Times ``factor`` for ``length_s``, on average every ``every_s``, at drawn moments."""

    kind: Literal["burst"]
    factor: float = Field(3.0, ge=0, le=1000)
    length_s: float = Field(60.0, gt=0, le=1e6)
    every_s: float = Field(3600.0, gt=0, le=1e7)
    each: Each = "bundle"


class Flash(Section):
    """A flash crowd: to ``factor`` within ``rise_s``, held, and back within ``fall_s``."""

    kind: Literal["flash"]
    at_s: float = Field(ge=0, le=1e8)
    factor: float = Field(5.0, ge=0, le=1000)
    rise_s: float = Field(60.0, ge=0, le=1e6)
    hold_s: float = Field(600.0, ge=0, le=1e7)
    fall_s: float = Field(600.0, ge=0, le=1e7)


class Trend(Section):
    """Grows by ``per_hour`` of the beginning's traffic each hour, or shrinks; never below 0."""

    kind: Literal["trend"]
    per_hour: float = Field(ge=-1000, le=1000)
    from_s: float = Field(0.0, ge=0, le=1e8)


class Growth(Section):
    """Doubles every ``doubling_h``, compound."""

    kind: Literal["growth"]
    doubling_h: float = Field(gt=0, le=1e6)


class Steps(Section):
    """Times ``factors[i]`` from ``at_s[i]`` on; 1 before the first."""

    kind: Literal["steps"]
    at_s: Annotated[
        tuple[Annotated[float, Field(ge=0, le=1e8)], ...], Field(strict=False, min_length=1)
    ]
    factors: Annotated[tuple[Annotated[float, Field(ge=0, le=1e6)], ...], Field(strict=False)]


Pattern = Annotated[
    Daily | Jitter | Burst | Flash | Trend | Growth | Steps, Field(discriminator="kind")
]


class Load(Section):
    """The topics of a namespace that behave alike. The patterns multiply.

    Several loads may share a namespace; its ``bundles`` are then the same in all.
    Rates are of the whole load, before any pattern; "out" is ``fan_out`` times "in".
    """

    namespace: NamespaceName
    bundles: int = Field(16, ge=1, le=1_000_000)
    topics: int = Field(ge=1, le=10_000_000)
    msgs_in_per_s: float = Field(ge=0, le=1e12)
    message_bytes: float = Field(1024.0, ge=0, le=1e9)
    fan_out: float = Field(1.0, ge=0, le=1000)
    producers_per_topic: float = Field(1.0, ge=0, le=1e6)
    consumers_per_topic: float = Field(1.0, ge=0, le=1e6)
    skew: Skew = Field(default_factory=Even)
    over: Literal["topics", "bundles"] = Field(
        "topics",
        description="What the skew is over: topics, which fall into bundles by their names, or "
        "bundles, whose topics are then even.",
    )
    patterns: Annotated[tuple[Pattern, ...], Field(strict=False)] = ()
    placed_on: Names = Field(
        (),
        description="The brokers that have these bundles at the beginning, in turn; none for all "
        "that are joined.",
    )
    placed: Literal["in_turn", "random", "unowned"] = "in_turn"
