"""Fencing tokens never decrease, and each belongs to one broker."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from loadmanager.core.ids import BundleId
from loadmanager.reference_broker.changes import ServingInterval
from tests.testbed.checker.availability import Segment, segments
from tests.testbed.checker.publishes import Publish


@dataclass(frozen=True, slots=True)
class Use:
    """A broker acted under a token at ``at_s``: it began to serve, or accepted a message."""

    at_s: float
    fencing_token: int
    broker: str
    bundle: BundleId
    what: str


@dataclass(frozen=True, slots=True)
class TokenFault:
    """``later`` followed ``earlier`` with a lower token, or with the same one at another broker."""

    earlier: Use
    later: Use

    def __str__(self) -> str:
        one, other = self.earlier, self.later
        return (
            f"{other.broker} {other.what} {other.bundle} under token {other.fencing_token} at "
            f"{other.at_s:.3f} s, after {one.broker} {one.what} {one.bundle} under "
            f"{one.fencing_token} at {one.at_s:.3f} s"
        )


def token_faults(
    intervals: Iterable[ServingInterval], publishes: Iterable[Publish]
) -> list[TokenFault]:
    """Return where a token was used after a higher one, or by a second broker.

    Each part of the hash circle is checked separately: a bundle and the parts that it was split
    into share topics, and the tokens of the parts are higher. Answers to clients count as much as
    the records of brokers.
    """
    uses = [*_uses(intervals, publishes)]
    made_of = segments(use.bundle for use in uses)
    at: defaultdict[Segment, list[Use]] = defaultdict(list)
    for use in uses:
        for segment in made_of[use.bundle]:
            at[segment].append(use)
    faults = {fault: None for segment in sorted(at) for fault in _faults(at[segment])}
    return sorted(faults, key=lambda fault: fault.later.at_s)


def _uses(intervals: Iterable[ServingInterval], publishes: Iterable[Publish]) -> Iterator[Use]:
    for one in intervals:
        yield Use(one.start_s, one.fencing_token, one.broker, one.bundle, "began")
    for publish in publishes:
        answer = publish.acknowledgement
        if answer is not None:
            what = "took a message of"
            yield Use(answer.clock_s, answer.fencing_token, publish.broker, answer.bundle, what)


def _faults(uses: Sequence[Use]) -> Iterator[TokenFault]:
    """Yield each use below the highest token before it. Uses at one instant have no order."""
    highest: Use | None = None
    for use in sorted(uses, key=lambda one: (one.at_s, one.fencing_token)):
        if highest is None or use.fencing_token > highest.fencing_token:
            highest = use
        elif use.fencing_token < highest.fencing_token or use.broker != highest.broker:
            yield TokenFault(highest, use)
