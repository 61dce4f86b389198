"""Pulsar's four algorithms for the split positions of a bundle.

Each returns the cuts, or None for "do not split"; an empty result has the same meaning.

Pulsar's accident `empty-parts`: a cut may separate no topics (several topics at one position, or
adjacent ones that stay on the same side), occur twice, or be at the edge of the bundle; the
split then fails or leaves an empty bundle. Without ``like_java`` a cut is made only where it
separates topics, and none if that is impossible.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.hashing import in_range
from loadmanager.core.settings import Settings, setting

_MIB: Final = 1048576


class NoPositions(LoadManagerError, ValueError):
    """A split at given positions was requested without positions."""

    def __init__(self) -> None:
        super().__init__("split positions = (); expected one position or more")


@dataclass(frozen=True, slots=True)
class TopicLoad:
    position: int
    msgs_per_s: float | None = None
    bytes_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class SplitAsk:
    """A bundle to split: its range, and the topics of its namespace.

    ``positions`` and ``force`` (split even with fewer than two topics) are for the algorithm
    that splits at given positions.
    """

    lower: int
    upper: int
    topics: Sequence[TopicLoad]
    positions: Sequence[int] = ()
    force: bool = False

    def held(self) -> list[TopicLoad]:
        held = (one for one in self.topics if in_range(one.position, self.lower, self.upper))
        return sorted(held, key=lambda topic: topic.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitLimits(Settings):
    """How much traffic a part may have, for the algorithm that cuts by traffic."""

    max_msgs_per_s: int = setting(
        "Most messages per second in one bundle.",
        "messages/s",
        "loadBalancerNamespaceBundleMaxMsgRate",
        default=30_000,
        within=(0, 2**31 - 1),
    )
    max_mib_per_s: int = setting(
        "Most throughput in one bundle.",
        "MiB/s",
        "loadBalancerNamespaceBundleMaxBandwidthMbytes",
        default=100,
        within=(0, 2**31 - 1),
    )
    difference_percent: int = setting(
        "By how much a bundle must exceed a limit before it is cut.",
        "percent",
        "flowOrQpsDifferenceThresholdPercentage",
        default=10,
        within=(0, 1000),
    )
    like_java: bool = False


Cuts = tuple[int, ...] | None
_Traffic = tuple[int, float, float]
SplitAlgorithm = Callable[[SplitAsk, SplitLimits], Cuts]


def range_equally(ask: SplitAsk, limits: SplitLimits) -> Cuts:
    """Cut the range in the middle, wherever the topics are."""
    del limits
    return (ask.lower + (ask.upper - ask.lower) // 2,)


def topic_count_equally(ask: SplitAsk, limits: SplitLimits) -> Cuts:
    """Cut between the two middle topics; with three, after the first.

    Topics at hashes 0, 5, 0x10, 0x15, 0x20 and 0x25 are cut at 0x12. Topics at one
    position cannot be separated: the cut is then made at the nearest possible place on either
    side.
    """
    hashes = [topic.position for topic in ask.held()]
    if len(hashes) < 2:  # noqa: PLR2004 - one topic cannot be parted
        return None
    middle = len(hashes) // 2
    if limits.like_java:  # empty-parts
        before, after = hashes[max(middle - 1, 0)], hashes[middle]
        return (before + (after - before) // 2,)
    cuts = [
        (abs(place - middle), max(before + 1, before + (after - before) // 2))
        for place, (before, after) in enumerate(pairwise(hashes), 1)
        if before < after
    ]
    inside = [(off, cut) for off, cut in cuts if cut < ask.upper]
    return (min(inside)[1],) if inside else None


def specified_positions(ask: SplitAsk, limits: SplitLimits) -> Cuts:
    """Cut at the given positions that lie inside the bundle. Raises `NoPositions`."""
    if not ask.positions:
        raise NoPositions
    if not ask.force and len(ask.held()) < 2:  # noqa: PLR2004 - one topic cannot be parted
        return None
    inside = [place for place in ask.positions if ask.lower < place < ask.upper]
    # empty-parts: a position given twice cuts twice.
    return tuple(sorted(inside if limits.like_java else {*inside})) or None


def flow_or_qps_equally(ask: SplitAsk, limits: SplitLimits) -> Cuts:
    """Cut so that each part stays within the limits on messages and throughput.

    Topics are summed in order of their positions; where the next one would exceed a limit, the
    cut is made halfway to it. The bundle is split only if it exceeds a limit by
    ``difference_percent`` in total.
    """
    held = ask.held()
    if len(held) < 2:  # noqa: PLR2004 - one topic cannot be parted
        return None
    measured = _measured(held)
    max_msgs, max_bytes = limits.max_msgs_per_s, limits.max_mib_per_s * _MIB
    factor = 1 + limits.difference_percent / 100.0
    total_msgs = sum(msgs for _, msgs, _ in measured)
    total_bytes = sum(size for _, _, size in measured)
    if len({position for position, _, _ in measured}) < 2 or (  # noqa: PLR2004 - one position cannot be parted
        total_msgs < max_msgs * factor and total_bytes < max_bytes * factor
    ):
        return None
    if limits.like_java:  # empty-parts
        return _cut_by_traffic(measured, max_msgs, max_bytes)
    cuts = _cut_by_traffic(_by_position(measured), max_msgs, max_bytes)
    return tuple(cut for cut in cuts if cut < ask.upper)


def _measured(held: Sequence[TopicLoad]) -> list[_Traffic]:
    return [
        (topic.position, topic.msgs_per_s, topic.bytes_per_s)
        for topic in held
        if topic.msgs_per_s is not None
        and topic.bytes_per_s is not None
        and (topic.msgs_per_s > 0 or topic.bytes_per_s > 0)
    ]


def _by_position(measured: Sequence[_Traffic]) -> list[_Traffic]:
    sums: dict[int, tuple[float, float]] = {}
    for position, msgs, size in measured:
        msgs_before, size_before = sums.get(position, (0.0, 0.0))
        sums[position] = (msgs_before + msgs, size_before + size)
    return [(position, *both) for position, both in sums.items()]


def _cut_by_traffic(
    measured: Sequence[_Traffic], max_msgs: float, max_bytes: float
) -> tuple[int, ...]:
    cuts: list[int] = []
    previous, msgs_so_far, bytes_so_far = measured[0]
    for position, msgs, size in measured[1:]:
        msgs_so_far += msgs
        bytes_so_far += size
        if msgs_so_far > max_msgs or bytes_so_far > max_bytes:
            cuts.append(previous + (position - previous) // 2 + 1)
            msgs_so_far, bytes_so_far = msgs, size
        previous = position
    return tuple(cuts)


SPLIT_ALGORITHMS: Final[Mapping[str, SplitAlgorithm]] = {
    "range_equally_divide": range_equally,
    "topic_count_equally_divide": topic_count_equally,
    "specified_positions_divide": specified_positions,
    "flow_or_qps_equally_divide": flow_or_qps_equally,
}
"""By Pulsar's names."""
