"""All rules, applied to all records of a run."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END, HashName, position
from loadmanager.core.ids import BundleId, namespace_of, parse_full_topic, range_of
from loadmanager.reference_broker.changes import Overlap, ServingInterval, overlaps
from tests.testbed.checker.availability import (
    Disturbance,
    Gap,
    Segment,
    gaps,
    segments,
    share_positions,
    unaccounted,
)
from tests.testbed.checker.publishes import Acknowledgement, Publish


class Why(StrEnum):
    NOT_SERVING = "its broker did not serve the bundle under that token then"
    NEWER_OWNER = "another broker served the bundle under a newer token then"
    OTHER_BROKER = "it was sent to another broker than the one that took it"
    OTHER_BUNDLE = "the topic does not lie in the bundle"
    OTHER_TIME = "it was taken before it was sent or after it was answered"


@dataclass(frozen=True, slots=True)
class Misplaced:
    publish: Publish
    why: Why

    def __str__(self) -> str:
        answer = self.publish.acknowledgement
        return f"{self.publish.topic} was taken by {self.publish.broker}: {self.why} ({answer})"


def misplaced(
    intervals: Iterable[ServingInterval], publishes: Iterable[Publish], hash_name: HashName
) -> list[Misplaced]:
    """Return each wrong acknowledgement with the first rule that it violates."""
    intervals = list(intervals)
    by_grant: defaultdict[tuple[str, BundleId, int], list[ServingInterval]] = defaultdict(list)
    for one in intervals:
        by_grant[one.incarnation, one.bundle, one.fencing_token].append(one)

    @cache
    def sharing(bundle: BundleId) -> Sequence[ServingInterval]:
        return [one for one in intervals if share_positions(one.bundle, bundle)]

    found: list[Misplaced] = []
    for publish in publishes:
        answer = publish.acknowledgement
        if answer is not None:
            of_grant = by_grant.get((answer.incarnation, answer.bundle, answer.fencing_token), ())
            why = _fault(publish, answer, of_grant, sharing, hash_name)
            found += [] if why is None else [Misplaced(publish, why)]
    return found


def _fault(
    publish: Publish,
    answer: Acknowledgement,
    of_grant: Sequence[ServingInterval],
    sharing: Callable[[BundleId], Sequence[ServingInterval]],
    hash_name: HashName,
) -> Why | None:
    at_s = answer.clock_s
    if not publish.sent_s <= at_s <= publish.answered_s:
        return Why.OTHER_TIME
    if not _holds(answer.bundle, publish.topic, hash_name):
        return Why.OTHER_BUNDLE
    # The last message of a bundle that is unloaded ends its serving at the same time.
    serving = [one for one in of_grant if one.start_s <= at_s <= one.end_s]
    if not serving:
        return Why.NOT_SERVING
    if all(one.broker != publish.broker for one in serving):
        return Why.OTHER_BROKER
    newer = any(
        one.incarnation != answer.incarnation
        and one.fencing_token > answer.fencing_token
        and one.start_s < at_s < one.end_s
        for one in sharing(answer.bundle)
    )
    return Why.NEWER_OWNER if newer else None


def _holds(bundle: BundleId, topic: str, hash_name: HashName) -> bool:
    """Return whether the bundle holds the topic; the last bundle also holds the circle's end."""
    try:
        name = parse_full_topic(topic)
    except InvalidName:
        return False
    lower, upper = range_of(bundle)
    at = position(name, hash_name)
    inside = lower <= at < upper or at == upper == FULL_RANGE_END
    return name.namespace == namespace_of(bundle) and inside


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


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The records of a run, and its disturbances.

    ``bundles`` should have been served from ``from_s`` to ``until_s``, except for gaps that the
    disturbances explain. ``hand_over_s`` is the longest time without an owner in a hand-over.
    """

    intervals: Sequence[ServingInterval]
    publishes: Sequence[Publish]
    hash_name: HashName
    bundles: Sequence[BundleId]
    from_s: float
    until_s: float
    disturbances: Sequence[Disturbance]
    hand_over_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    overlaps: Sequence[Overlap]
    misplaced: Sequence[Misplaced]
    token_faults: Sequence[TokenFault]
    unserved: Sequence[Gap]

    @property
    def violations(self) -> Iterator[str]:
        for found in (self.overlaps, self.misplaced, self.token_faults, self.unserved):
            yield from map(str, found)


def judge(history: History) -> Verdict:
    free = gaps(history.intervals, history.bundles, from_s=history.from_s, until_s=history.until_s)
    return Verdict(
        overlaps=overlaps(history.intervals),
        misplaced=misplaced(history.intervals, history.publishes, history.hash_name),
        token_faults=token_faults(history.intervals, history.publishes),
        unserved=unaccounted(free, history.disturbances, hand_over_s=history.hand_over_s),
    )
