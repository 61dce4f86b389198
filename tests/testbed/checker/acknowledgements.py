"""Every acknowledged message was accepted by the owner of its topic at that time."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache

from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import FULL_RANGE_END, HashName, position
from loadmanager.core.ids import BundleId, namespace_of, parse_full_topic, range_of
from loadmanager.reference_broker.changes import ServingInterval
from tests.testbed.checker.availability import share_positions
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
