from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from loadmanager.core.errors import InvalidName
from loadmanager.core.hashing import in_range, position
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

Flow = tuple[float, float]  # Messages and bytes.
_NOTHING: Final[Flow] = (0.0, 0.0)
_NO_RATES: Final = Rates()
# How the names of subscriptions begin by which Pulsar itself reads topics.
_PULSARS_READERS: Final = ("__compaction", "__system_reader", "pulsar.dedup", "pulsar.repl")
# A subscription that receives more than this times what is published reads a backlog: redeliveries,
# and messages that are published in one window and received in the next, stay below twice that.
FAR_ABOVE: Final = 2.0


@dataclass(slots=True)
class TopicCounters:
    """What one topic has counted since it was loaded.

    ``out`` is what each subscription received, and at "" what the topic delivered, where a version
    writes it. ``replicated`` is per second to each remote cluster, which Pulsar computes itself.
    """

    msgs_in: float = 0.0
    bytes_in: float = 0.0
    out: dict[str, Flow] = field(default_factory=dict)
    replicated: dict[str, Flow] | None = None


_NEVER_COUNTED: Final = TopicCounters()


@dataclass(frozen=True, slots=True)
class Window:
    """The traffic of one broker's topics between two readings.

    ``rates`` are of lasting traffic, by which bundles are moved: what is published, and what
    subscriptions and remote clusters receive of it. ``passing`` are of reads that end by
    themselves: by Pulsar's own subscriptions, of a backlog, and by subscriptions that began or
    ended within the window. The rates of ``partial`` topics are lower bounds.
    ``uncounted_bytes_per_s`` are in the broker's own totals, but in no topic's rates.
    """

    rates: Mapping[str, Rates]
    partial: frozenset[str] = frozenset()
    passing: Mapping[str, Rates] = field(default_factory=dict)
    uncounted_bytes_per_s: float = 0.0


def between(
    before: Mapping[str, TopicCounters],
    after: Mapping[str, TopicCounters],
    took_s: float,
    totals_grew: Flow | None = None,
) -> Window:
    """Return the traffic between two readings of one broker, ``took_s`` (above 0) apart.

    A topic was loaded within the window if it is new, or if its counters of what is published fell.
    ``totals_grew`` are the differences of the broker's own totals of bytes in and out: loaded
    topics, and reads that began, count no more of them than all else leaves.
    """
    rates: dict[str, Rates] = {}
    passing: dict[str, Rates] = {}
    loaded: set[str] = set()
    unsure: set[str] = set()
    partial: set[str] = set()
    replicated = 0.0
    for name, now in after.items():
        then = before.get(name)
        if then is None or (now.msgs_in < then.msgs_in and now.bytes_in <= then.bytes_in):
            loaded.add(name)
            then = None
        one = _counted(now, then, took_s)
        rates[name] = Rates(*(count / took_s for count in one.lasting))
        if any(one.brief):
            passing[name] = Rates(0.0, one.brief[0] / took_s, 0.0, one.brief[1] / took_s)
            if then is None or one.anew:
                unsure.add(name)
        if then is None or one.fell:
            partial.add(name)
        if now.replicated:
            replicated += sum(size for _, size in now.replicated.values())
    uncounted = 0.0
    if totals_grew is not None:
        left = [one for name, one in before.items() if name not in after or name in loaded]
        left_in = sum(one.bytes_in for one in left)
        left_out = sum(size for one in left for name, (_, size) in one.out.items() if name)
        most_in = (totals_grew[0] + left_in) / took_s
        most_out = (totals_grew[1] + left_out) / took_s + replicated
        uncounted = _bound((rates, loaded), (passing, unsure), (most_in, most_out))
    return Window(rates, frozenset(partial), passing, uncounted)


class _Counted(NamedTuple):
    """Of one topic in a window: counts in the order of `Rates`, and of passing reads."""

    lasting: tuple[float, float, float, float]
    brief: Flow
    anew: bool
    fell: bool


def _counted(now: TopicCounters, then: TopicCounters | None, took_s: float) -> _Counted:
    """Return what a topic counted since ``then``, None if it was loaded meanwhile.

    Of a subscription's counter that is new, or fell, no more counts than what was published,
    because the rest of it may be older.
    """
    old = then or _NEVER_COUNTED
    msgs_in, bytes_in = max(now.msgs_in - old.msgs_in, 0.0), max(now.bytes_in - old.bytes_in, 0.0)
    anew = fell = False
    reads: list[Flow] = []
    brief: list[Flow] = []
    whole = _NOTHING
    for name, (msgs, size) in now.out.items():
        own = name.startswith(_PULSARS_READERS)
        former = old.out.get(name)
        if former is not None and msgs >= former[0]:
            grown, begins = (msgs - former[0], max(size - former[1], 0.0)), False
        else:
            grown, begins = (min(msgs, msgs_in), min(size, bytes_in)), then is not None
            anew = anew or begins
            fell = fell or (former is not None and not own)
        if not name:
            whole = grown
        elif own or begins:
            brief.append(grown)
        else:
            reads.append(grown)
    # What the topic delivered besides went to subscriptions that ended, if any is counted apart.
    msgs, size = _sum([*reads, *brief])
    rest = max(whole[0] - msgs, 0.0), max(whole[1] - size, 0.0)
    (brief if reads or brief else reads).append(rest)
    for msgs_per_s, bytes_per_s in (now.replicated or {}).values():
        reads.append((msgs_per_s * took_s, bytes_per_s * took_s))
    lasting: list[Flow] = []
    for msgs, size in reads:
        share = msgs_in / msgs if msgs > FAR_ABOVE * msgs_in else 1.0
        lasting.append((share * msgs, share * size))
        brief.append(((1.0 - share) * msgs, (1.0 - share) * size))
    msgs_out, bytes_out = _sum(lasting)
    return _Counted((msgs_in, msgs_out, bytes_in, bytes_out), _sum(brief), anew, fell)


def _sum(flows: Collection[Flow]) -> Flow:
    return sum(msgs for msgs, _ in flows), sum(size for _, size in flows)


def _bound(
    lasting: tuple[dict[str, Rates], Collection[str]],
    brief: tuple[dict[str, Rates], Collection[str]],
    most: Flow,
) -> float:
    """Cut what began within the window to what the broker's totals leave, and return the rest."""
    kinds = (lasting, brief)
    whole = total([one for of_kind, _ in kinds for one in of_kind.values()])
    new = total([of_kind[name] for of_kind, names in kinds for name in names])
    left_in, left_out = most[0] - whole.bytes_in_per_s, most[1] - whole.bytes_out_per_s
    cut_in, cut_out = _cut(new.bytes_in_per_s, left_in), _cut(new.bytes_out_per_s, left_out)
    cuts = (cut_in, cut_out, cut_in, cut_out)
    for of_kind, names in kinds:
        for name in names:
            row = of_kind[name].row()
            of_kind[name] = Rates(*(rate * cut for rate, cut in zip(row, cuts, strict=True)))
    return max(left_in, 0.0) + max(left_out, 0.0)


def _cut(begun: float, left: float) -> float:
    """Return the share of ``begun`` that is left if ``left`` is below 0: too much was counted."""
    return max(1.0 + left / begun, 0.0) if left < 0.0 < begun else 1.0


# Pulsar's topic for the policies of the topics of each namespace, which it reads to load them.
CHANGE_EVENTS: Final = "__change_events"
# Begin of the names of topics without which no topic with transactions of a namespace loads.
SNAPSHOTS: Final = "__transaction_buffer_snapshot"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleTraffic(Rates):
    """The lasting traffic of one bundle over one window: the sums of its topics.

    ``passing`` traffic loads its broker as well, but is no reason to move it. If ``partial``, the
    rates are lower bounds. ``topic`` is the first that was counted and can be looked up (a segment
    cannot), ``needed`` one that Pulsar reads to load the namespace's other topics, ``internal`` one
    of its own services that should not be moved.
    """

    topics: int = 0
    topic: str = ""
    passing: Rates = _NO_RATES
    partial: bool = False
    non_persistent: bool = False
    needed: str = ""
    internal: str = ""

    def stats(self) -> BundleStats:
        return BundleStats(*self.row(), self.topics)


NO_TRAFFIC: Final = BundleTraffic()


def bundle_traffic(
    owned: Collection[BundleId], window: Window
) -> tuple[Mapping[BundleId, BundleTraffic], BundleTraffic]:
    """Return the traffic of each owned bundle, and that of the topics in none of them.

    Topics are hashed with crc32, as in Pulsar; a segment by its own name, as in Pulsar 5.0.
    """
    found = dict.fromkeys(owned, NO_TRAFFIC)
    homeless = NO_TRAFFIC
    for name, topic, _, bundle in placed(owned, window.rates):
        rates, passing = window.rates[name], window.passing.get(name)
        if topic is None or bundle is None:
            homeless = _plus(homeless, rates, passing)
            continue
        sums = found[bundle]
        needed = topic.local == CHANGE_EVENTS or topic.local.startswith(SNAPSHOTS)
        internal = topic.local.startswith("__") and not needed
        found[bundle] = replace(
            _plus(sums, rates, passing),
            topic=sums.topic or ("" if topic.domain == "segment" else name),
            partial=sums.partial or name in window.partial,
            non_persistent=sums.non_persistent or topic.domain == "non-persistent",
            needed=max(sums.needed, name if needed else ""),
            internal=sums.internal or (name if internal else ""),
        )
    return found, homeless


def _plus(sums: BundleTraffic, rates: Rates, passing: Rates | None) -> BundleTraffic:
    msgs_in, msgs_out, bytes_in, bytes_out = total((sums, rates)).row()
    return replace(
        sums,
        msgs_in_per_s=msgs_in,
        msgs_out_per_s=msgs_out,
        bytes_in_per_s=bytes_in,
        bytes_out_per_s=bytes_out,
        passing=sums.passing if passing is None else total((sums.passing, passing)),
        topics=sums.topics + 1,
    )


def topics_in(bundle: BundleId, names: Iterable[str]) -> Iterator[tuple[str, TopicName, int]]:
    """Yield each full name that is a topic of ``bundle``, with the topic and its position."""
    for name, topic, at, home in placed((bundle,), names):
        if topic and home:
            yield name, topic, at


def placed(
    bundles: Iterable[BundleId], names: Iterable[str]
) -> Iterator[tuple[str, TopicName | None, int, BundleId | None]]:
    """Yield each full name with its topic, the topic's position, and its bundle if it is of these.

    What is no name of a topic has none.
    """
    ranges: dict[Namespace, list[tuple[int, int, BundleId]]] = {}
    for lower, upper, one in sorted((*range_of(one), one) for one in bundles):
        ranges.setdefault(namespace_of(one), []).append((lower, upper, one))
    for name in names:
        try:
            topic = parse_full_topic(name)
        except InvalidName:
            yield name, None, 0, None
            continue
        at, within = position(topic, "crc32"), ranges.get(topic.namespace, [])
        place = bisect_right(within, (at + 1,)) - 1
        there = place >= 0 and in_range(at, *within[place][:2])
        yield name, topic, at, within[place][2] if there else None
