import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.memory import Memory
from loadmanager.core.plan import Cause, Offer, Reason, Refusal
from loadmanager.core.scores import FloatArray
from loadmanager.core.settings import Settings, setting
from loadmanager.core.shedding.contract import Shed
from loadmanager.core.shedding.selection import largest_first

_INT_MAX: Final = 2**31 - 1
_NEARLY_ZERO: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLoadShedder(Settings):
    """Offer bundles of the broker with the most traffic if it exceeds the least by too much.

    Message rates are compared first: with 3000 and 1000 messages/s the difference is 200
    percent, and bundles of up to 0.2 of the 2000 between them are offered. Only if the rates
    are close enough, throughputs are compared by their ratio. Usage never counts, so brokers of
    different sizes get the same traffic.

    Pulsar's accidents: `whole-amounts` truncates the amount to be shed, and what is subtracted
    from it, to whole numbers of 32 bits; `least-of-32-bits` limits the least traffic to
    2,147,483,647, so that brokers with 9 GB/s each count as uneven;
    `idle-bundles` sheds every bundle without traffic, because a size of zero fits any amount.
    """

    rate_difference_percent: float = setting(
        "Largest difference of message rates, in percent of the least message rate; "
        "0 or less ignores message rates.",
        "percent",
        "loadBalancerMsgRateDifferenceShedderThreshold",
        default=50.0,
        within=(-1.0, 1e9),
    )
    throughput_ratio: float = setting(
        "Largest ratio of the most to the least throughput; 0 or less ignores it.",
        "ratio",
        "loadBalancerMsgThroughputMultiplierDifferenceShedderThreshold",
        default=4.0,
        within=(-1.0, 1e9),
    )
    max_share: float = setting(
        "The fraction of the difference that moves in one round.",
        "fraction",
        "maxUnloadPercentage",
        default=0.2,
        within=(0.0, 1.0),
    )
    max_bundles: int = setting(
        "Maximum number of bundles in one round; -1 for no limit.",
        "bundles",
        "maxUnloadBundleNumPerShedding",
        default=-1,
        within=(-1, 1_000_000),
    )
    min_msgs_per_s: int = setting(
        "Smaller amounts are not moved.",
        "messages/s",
        "minUnloadMessage",
        default=1000,
        within=(0, _INT_MAX),
    )
    min_bytes_per_s: int = setting(
        "Smaller amounts are not moved.",
        "bytes/s",
        "minUnloadMessageThroughput",
        default=1048576,
        within=(0, _INT_MAX),
    )
    like_java: bool = False

    def shed(self, view: ClusterView, memory: Memory) -> Shed:
        if not view.brokers.names:
            return Shed((), (Refusal("", Reason.TOO_FEW_BROKERS, "0 brokers"),), memory)
        msgs, volume = view.brokers.msgs_per_s, view.brokers.bytes_per_s
        most, least = self._extremes(msgs)
        if self.rate_difference_percent > 0 and (
            (most - least) * 100 / least > self.rate_difference_percent
        ):
            sizes, minimum = view.bundles.short_msgs_per_s, self.min_msgs_per_s
            return self._from_busiest(view, memory, msgs, sizes, minimum)
        most, least = self._extremes(volume)
        if self.throughput_ratio > 0 and most / least > self.throughput_ratio:
            sizes, minimum = view.bundles.short_bytes_per_s, self.min_bytes_per_s
            return self._from_busiest(view, memory, volume, sizes, minimum)
        return Shed((), (Refusal("", Reason.WITHIN_THRESHOLD),), memory)

    def _from_busiest(
        self,
        view: ClusterView,
        memory: Memory,
        traffic: FloatArray,
        sizes: FloatArray,
        minimum: int,
    ) -> Shed:
        row = int(np.argmax(traffic))
        name = view.brokers.names[row]
        most, least = self._extremes(traffic)
        need = self._amount((most - least) * self.max_share)
        if view.owned.counts[row] <= 1:
            few = Refusal(name, Reason.TOO_FEW_BUNDLES, f"{view.owned.counts[row]} bundles")
            return Shed((), (few,), memory)
        if need < minimum:
            return Shed((), (Refusal(name, Reason.BELOW_MINIMUM, f"{need:.0f} to shed"),), memory)
        offers = self._pick(view, row, sizes, need)
        if not offers:
            return Shed((), (Refusal(name, Reason.NO_BUNDLE_FITS, f"{need:.0f} to shed"),), memory)
        return Shed(tuple(offers), (), memory)

    def _pick(self, view: ClusterView, row: int, sizes: FloatArray, need: float) -> list[Offer]:
        rows = largest_first(view, row, sizes)
        picked: list[int] = []
        for bundle, size in zip(rows.tolist(), sizes[rows].tolist(), strict=True):
            if len(picked) == self.max_bundles:
                break
            if size == 0 and not self.like_java:  # idle-bundles
                break
            if size <= need:
                picked.append(bundle)
                need = self._amount(need - self._amount(size))
        source = view.brokers.names[row]
        return [Offer(view.bundles.names[bundle], source, Cause.IMBALANCE) for bundle in picked]

    def _extremes(self, traffic: FloatArray) -> tuple[float, float]:
        least = float(traffic.min())
        if self.like_java:  # least-of-32-bits
            least = min(least, float(_INT_MAX))
        return float(traffic.max()), 1.0 if abs(least) <= _NEARLY_ZERO else least

    def _amount(self, value: float) -> float:
        return _to_int(value) if self.like_java else value  # whole-amounts


def _to_int(value: float) -> int:
    """Truncate like Java's cast from double to int, which saturates at 32 bits."""
    return max(-_INT_MAX - 1, min(_INT_MAX, math.trunc(value)))
