from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BrokerId
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Cause, Offer, Reason, Refusal
from loadmanager.core.scores import FloatArray, ResourceWeights
from loadmanager.core.settings import Settings, setting
from loadmanager.core.shedding.contract import Shed
from loadmanager.core.shedding.selection import largest_first

_POINTS: Final = (0.0, 1000.0)
_HITS: Final = (0, 1_000_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class AvgShedder(Settings):
    """Pair brokers by load, most with least loaded, and reduce the difference of each pair.

    Scores are in points: 100 is full. A pair whose difference has reached
    ``low_threshold_points`` in ``low_hits`` rounds, or ``high_threshold_points`` in
    ``high_hits``, moves ``max_share`` of the difference of its traffic to the less loaded
    broker, the largest bundles that fit first. A pair with 10,000 and 2,000 messages/s moves up
    to 0.5 times 8,000.

    Counters belong to brokers: hits with another partner count as well. The targets of bundles
    are planned by bundle name, for one round (as in Pulsar since July 2026).

    Pulsar's accidents: `hits-spent` clears a pair's counters before it is known whether
    any bundle fits, so that the pair may wait again without a move; `own-partner` counts two
    hits of the broker in the middle, which is paired with itself, if the low
    threshold is 0; `hits-of-the-gone` keeps the counters of brokers that left until
    they return; `sole-bundle` unloads the only bundle of a broker although its log
    denies it. The planner refuses the last in safe mode.
    """

    low_threshold_points: float = setting(
        "Difference of a pair that counts towards ``low_hits``.",
        "points",
        "loadBalancerAvgShedderLowThreshold",
        default=15.0,
        within=_POINTS,
    )
    high_threshold_points: float = setting(
        "Difference of a pair that counts towards ``high_hits``.",
        "points",
        "loadBalancerAvgShedderHighThreshold",
        default=40.0,
        within=_POINTS,
    )
    low_hits: int = setting(
        "Rounds above the low threshold before a pair moves anything.",
        "rounds",
        "loadBalancerAvgShedderHitCountLowThreshold",
        default=8,
        within=_HITS,
    )
    high_hits: int = setting(
        "Rounds above the high threshold before a pair moves anything.",
        "rounds",
        "loadBalancerAvgShedderHitCountHighThreshold",
        default=2,
        within=_HITS,
    )
    max_share: float = setting(
        "The share of a pair's difference that moves in one round; 0.5 evens it out. "
        "Pulsar's default was 0.2 before version 5.0.",
        "fraction",
        "maxUnloadPercentage",
        default=0.5,
        within=(0.0, 1.0),
    )
    min_msgs_per_s: int = setting(
        "No move by message rate for this or less.",
        "messages/s",
        "minUnloadMessage",
        default=1000,
        within=(0, 2**31 - 1),
    )
    min_bytes_per_s: int = setting(
        "No move by throughput for this or less.",
        "bytes/s",
        "minUnloadMessageThroughput",
        default=1048576,
        within=(0, 2**31 - 1),
    )
    weights: ResourceWeights = field(default_factory=ResourceWeights)
    like_java: bool = False

    def scores(self, view: ClusterView) -> FloatArray:
        return view.scores(self.weights) * 100

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        scores = self.scores(view)
        hits = _Counters(dict(memory.high_hits), dict(memory.low_hits))
        if not self.like_java:  # hits-of-the-gone
            hits.keep_only(view.brokers.index)
        refusals: list[Refusal] = []
        pairs = self._pairs(view.brokers.names, scores, hits, refusals)
        offers: list[Offer] = []
        for low, high in pairs:
            offers += self._even_out(view, low, high, hits, refusals)
        planned = {offer.bundle: offer.target for offer in offers if offer.target is not None}
        remembered = replace(memory, high_hits=hits.high, low_hits=hits.low, planned=planned)
        return Shed(tuple(offers), tuple(refusals), remembered)

    def _pairs(
        self,
        names: Sequence[BrokerId],
        scores: FloatArray,
        hits: "_Counters",
        refusals: list[Refusal],
    ) -> list[tuple[int, int]]:
        """Return the pairs far enough apart, outermost first, and count their hits."""
        order = np.argsort(scores, kind="stable").tolist()
        kept: list[tuple[int, int]] = []
        for place in range((len(order) + 1) // 2):
            low, high = order[place], order[-1 - place]
            apart = float(scores[high] - scores[low])
            alone = low == high and not self.like_java  # own-partner
            if apart < self.low_threshold_points or alone:
                hits.clear(names[low], names[high])
                for row in {low: None, high: None}:
                    detail = f"{scores[row]:.1f} points, {apart:.1f} apart"
                    refusals.append(Refusal(names[row], Reason.WITHIN_THRESHOLD, detail))
                continue
            hits.count(names[low], names[high], high=apart >= self.high_threshold_points)
            kept.append((low, high))
        if not kept:
            hits.clear_all()
        return kept

    def _even_out(
        self,
        view: ClusterView,
        low: int,
        high: int,
        hits: "_Counters",
        refusals: list[Refusal],
    ) -> list[Offer]:
        names = view.brokers.names
        pair = (names[low], names[high])
        if not any(
            hits.high.get(name, 0) >= self.high_hits or hits.low.get(name, 0) >= self.low_hits
            for name in pair
        ):
            refusals.append(Refusal(pair[1], Reason.HITS_PENDING, hits.progress(pair)))
            return []
        if self.like_java:  # hits-spent
            hits.clear(*pair)
        msgs, volume = view.brokers.msgs_per_s, view.brokers.bytes_per_s
        by_msgs = float(msgs[high] - msgs[low]) * self.max_share
        by_bytes = float(volume[high] - volume[low]) * self.max_share
        if by_msgs > self.min_msgs_per_s:
            picked = self._pick(view, high, view.bundles.short_msgs_per_s, by_msgs)
        elif by_bytes > self.min_bytes_per_s:
            picked = self._pick(view, high, view.bundles.short_bytes_per_s, by_bytes)
        else:
            detail = f"{by_msgs:.0f} messages/s, {by_bytes:.0f} bytes/s to shed"
            refusals.append(Refusal(pair[1], Reason.BELOW_MINIMUM, detail))
            return []
        if not picked:
            refusals.append(Refusal(pair[1], Reason.NO_BUNDLE_FITS))
            return []
        hits.clear(*pair)
        bundles = view.bundles.names
        return [Offer(bundles[row], pair[1], Cause.IMBALANCE, pair[0]) for row in picked]

    def _pick(self, view: ClusterView, row: int, sizes: FloatArray, need: float) -> list[int]:
        rows = largest_first(view, row, sizes)
        picked: list[int] = []
        for bundle, size in zip(rows.tolist(), sizes[rows].tolist(), strict=True):
            if 0 < size <= need:
                picked.append(bundle)
                need -= size
        return picked


@dataclass(slots=True)
class _Counters:
    high: dict[BrokerId, int]
    low: dict[BrokerId, int]

    def count(self, *pair: BrokerId, high: bool) -> None:
        """Add a hit to both brokers of a pair; a broker paired with itself receives two."""
        for name in pair:
            self.low[name] = self.low.get(name, 0) + 1
        for name in pair:
            if high:
                self.high[name] = self.high.get(name, 0) + 1
            else:
                self.high.pop(name, None)

    def clear(self, *pair: BrokerId) -> None:
        for name in pair:
            self.high.pop(name, None)
            self.low.pop(name, None)

    def clear_all(self) -> None:
        self.high.clear()
        self.low.clear()

    def keep_only(self, brokers: Container[BrokerId]) -> None:
        for hits in (self.high, self.low):
            for name in [name for name in hits if name not in brokers]:
                del hits[name]

    def progress(self, pair: Sequence[BrokerId]) -> str:
        return f"{_most(self.low, pair)} low hits, {_most(self.high, pair)} high hits"


def _most(hits: Mapping[BrokerId, int], pair: Sequence[BrokerId]) -> int:
    return max(hits.get(name, 0) for name in pair)
