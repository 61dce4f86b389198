from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import lies_in, position
from loadmanager.core.ids import (
    BundleId,
    Namespace,
    TopicName,
    namespace_of,
    parse_full_topic,
    range_of,
)
from loadmanager.core.load import BundleStats
from loadmanager.core.rates import Rates, total


class Counters(NamedTuple):
    msgs_in: float = 0.0
    msgs_out: float = 0.0
    bytes_in: float = 0.0
    bytes_out: float = 0.0


NOTHING: Final = Counters()


@dataclass(frozen=True, slots=True)
class Window:
    """The traffic of one broker's topics between two readings.

    The counters of ``partial`` topics began within the window: their rates are lower bounds.
    """

    rates: Mapping[str, Rates]
    partial: frozenset[str]


def between(before: Mapping[str, Counters], after: Mapping[str, Counters], took_s: float) -> Window:
    """Return the traffic between two readings of one broker, ``took_s`` (above 0) apart."""
    rates: dict[str, Rates] = {}
    partial: set[str] = set()
    for topic, now in after.items():
        then = before.get(topic)
        if then is None or any(later < earlier for later, earlier in zip(now, then, strict=True)):
            partial.add(topic)
            then = NOTHING
        grown = (later - earlier for later, earlier in zip(now, then, strict=True))
        rates[topic] = Rates(*(count / took_s for count in grown))
    return Window(rates, frozenset(partial))


CHANGE_EVENTS: Final = "__change_events"
"""Pulsar's topic for the policies of the topics of each namespace, which it reads to load them."""

SNAPSHOTS: Final = "__transaction_buffer_snapshot"
"""Begin of the names of topics without which no topic with transactions of a namespace loads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTraffic(Rates):
    """The traffic of one bundle over one window: the sums of its topics.

    If ``partial``, a topic was loaded within the window, so the rates are lower bounds. Messages of
    ``non_persistent`` topics are lost during a move. ``topic`` is the first that was counted,
    ``needed`` one that Pulsar reads to load the namespace's other topics, and ``internal`` one of
    its own services that should not be moved, "" for none.
    """

    topics: int = 0
    topic: str = ""
    partial: bool = False
    non_persistent: bool = False
    needed: str = ""
    internal: str = ""

    def stats(self) -> BundleStats:
        return BundleStats(*self.row(), self.topics)


def bundle_traffic(
    owned: Collection[BundleId], window: Window
) -> tuple[Mapping[BundleId, BundleTraffic], int]:
    """Return the traffic of each owned bundle, and the number of topics in none of them.

    A topic outside the bundles was just unloaded, or loaded after the bundles were listed.
    Topics are hashed with crc32, as in Pulsar.
    """
    holds = _Ranges(owned)
    found = dict.fromkeys(owned, BundleTraffic())
    homeless = 0
    for name, rates in window.rates.items():
        try:
            topic = parse_full_topic(name)
        except InvalidName:
            homeless += 1
            continue
        bundle = holds.of(topic.namespace, position(topic, "crc32"))
        if bundle is None:
            homeless += 1
            continue
        sums = found[bundle]
        needed = topic.local == CHANGE_EVENTS or topic.local.startswith(SNAPSHOTS)
        internal = topic.local.startswith("__") and not needed
        found[bundle] = BundleTraffic(
            *total((sums, rates)).row(),
            topics=sums.topics + 1,
            topic=sums.topic or name,
            partial=sums.partial or name in window.partial,
            non_persistent=sums.non_persistent or topic.domain == "non-persistent",
            needed=max(sums.needed, name if needed else ""),
            internal=sums.internal or (name if internal else ""),
        )
    return found, homeless


class _Ranges:
    def __init__(self, bundles: Collection[BundleId]) -> None:
        self._bundles: dict[Namespace, list[tuple[int, BundleId]]] = {}
        for bundle in bundles:
            self._bundles.setdefault(namespace_of(bundle), []).append((range_of(bundle)[0], bundle))
        for ranges in self._bundles.values():
            ranges.sort()

    def of(self, namespace: Namespace, at: int) -> BundleId | None:
        ranges = self._bundles.get(namespace, [])
        place = bisect_right(ranges, at, key=lambda one: one[0]) - 1
        if place < 0:
            return None
        _, bundle = ranges[place]
        return bundle if lies_in(at, bundle) else None


def topics_in(bundle: BundleId, names: Iterable[str]) -> Iterator[tuple[str, TopicName, int]]:
    """Yield each full name that is a topic of ``bundle``, with the topic and its position.

    Topics are hashed with crc32, as in Pulsar.
    """
    for name in names:
        try:
            topic = parse_full_topic(name)
        except InvalidName:
            continue
        at = position(topic, "crc32")
        if topic.namespace == namespace_of(bundle) and lies_in(at, bundle):
            yield name, topic, at
