"""What a scenario expects of the scores, and the known failures of others' algorithms."""

from typing import Annotated, Literal

from pydantic import Field

from loadmanager.config.forms import Section
from loadmanager.core.bounds import RATE

Patterns = Annotated[tuple[str, ...], Field(strict=False, min_length=1)]


class Expectation(Section):
    """A score that lies within bounds, the median over the seeds.

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
