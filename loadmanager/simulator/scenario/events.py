"""What happens during a scenario. Brokers are named ``class-number``, or all of a ``class``."""

from typing import Annotated, Literal

from pydantic import Field

from loadmanager.config.forms import Section
from loadmanager.simulator.scenario.loads import NamespaceName

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


class Join(Section):
    """Brokers that are not there start and register, empty."""

    kind: Literal["join"]
    at_s: Time
    brokers: Brokers


class Leave(Section):
    """Brokers stop in an orderly way without a drain: their locks are free at once."""

    kind: Literal["leave"]
    at_s: Time
    brokers: Brokers


class Crash(Section):
    """Brokers die: their bundles are unowned once their sessions have ended."""

    kind: Literal["crash"]
    at_s: Time
    brokers: Brokers


class Drain(Section):
    """Brokers are emptied by the leader, and leave once they have nothing any more."""

    kind: Literal["drain"]
    at_s: Time
    brokers: Brokers


class Restart(Section):
    """Brokers restart one after the other, ``every_s`` apart: drained or not, then away.

    The next begins no sooner than the one before is back.
    """

    kind: Literal["restart"]
    at_s: Time
    brokers: Brokers
    every_s: float = Field(
        300.0, ge=0, le=1e6, description="From the beginning of one to that of the next, at least."
    )
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
    factor: float = Field(
        ge=0, le=1e6, description="Times what it was; of several shifts the factors multiply."
    )


Event = Annotated[
    Join | Leave | Crash | Drain | Restart | Noise | Silence | Shift,
    Field(discriminator="kind"),
]
