"""One pair of brokers in TransferShedder: moves off the more loaded one, and swaps."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from loadmanager.core.cluster import ClusterView, TopBundle
from loadmanager.core.ids import BrokerId, BundleId, namespace_of
from loadmanager.core.plan import Cause, Offer, Reason, Refusal

if TYPE_CHECKING:
    from loadmanager.core.shedding.transfer import TransferShedder

_SWAP_CEILING: Final = 0.75
"""After a swap the source must have less than this fraction of its throughput."""


@dataclass(slots=True, kw_only=True)
class Offload:
    """The moves from ``source`` (more loaded) to ``target``, up to ``limit_bytes_per_s``.

    Amounts are throughputs, in plus out. ``spare`` runs over the target's heaviest
    bundles once: bundles skipped by one swap are not considered by the next.

    Pulsar's accidents: `swap-gain` counts the traffic that a swap returns only in debug mode,
    by a statement inside a logging block, so that otherwise too little moves
    after a swap; `swap-unchecked` swaps bundles of the target that recently
    moved, are owned by another broker or belong to an excluded namespace.
    """

    rules: "TransferShedder"
    view: ClusterView
    source: BrokerId
    target: BrokerId
    cause: Cause
    source_load: float
    source_bytes_per_s: float
    target_bytes_per_s: float
    limit_bytes_per_s: float
    bundles: Sequence[TopBundle]
    spare: Iterator[TopBundle] | None
    offers: list[Offer] = field(default_factory=list)
    out_bytes_per_s: float = 0.0
    back_bytes_per_s: float = 0.0

    @classmethod
    def between(
        cls, rules: "TransferShedder", view: ClusterView, most: int, least: int, cause: Cause
    ) -> "Offload | Refusal":
        """Return the offload from broker row ``most`` to ``least``, or why there is none."""
        brokers = view.brokers
        source, target = brokers.names[most], brokers.names[least]
        bundles = view.top_bundles.get(source, ())
        if not bundles:
            return Refusal(source, Reason.LOAD_UNKNOWN, "no bundle of it is known")
        if len(bundles) == 1:
            return Refusal(source, Reason.TOO_FEW_BUNDLES, "1 bundle")
        load = float(brokers.load_ema[most])
        throughput = float(brokers.bytes_per_s[most])
        share = (load - float(brokers.load_ema[least])) / 2.0
        spare = view.top_bundles.get(target)
        return cls(
            rules=rules,
            view=view,
            source=source,
            target=target,
            cause=cause,
            source_load=load,
            source_bytes_per_s=throughput,
            target_bytes_per_s=float(brokers.bytes_per_s[least]),
            limit_bytes_per_s=divided(throughput * share, load),
            bundles=bundles,
            spare=None if spare is None else iter(spare),
        )

    def run(self) -> None:
        """Pick bundles in the order reported until the limit is reached."""
        remaining = len(self.bundles)
        for top in self.bundles:
            if not self._may_leave(top.bundle, self.target):
                continue
            if remaining <= 1:
                return
            if top.bytes_per_s == 0:
                continue
            net = self.out_bytes_per_s - self.back_bytes_per_s
            swapped: list[TopBundle] = []
            if net + top.bytes_per_s > self.limit_bytes_per_s:
                found = self._swap(top.bytes_per_s)
                if found is None:
                    return
                swapped = found
            self._take(top, swapped)
            remaining -= 1

    def moved_load(self) -> float:
        net = self.out_bytes_per_s - self.back_bytes_per_s
        return divided(net * self.source_load, self.source_bytes_per_s)

    def _take(self, top: TopBundle, swapped: Sequence[TopBundle]) -> None:
        target = self.target if self.rules.transfer else None
        self.offers.append(Offer(top.bundle, self.source, self.cause, target))
        for other in swapped:
            self.offers.append(Offer(other.bundle, self.target, self.cause, self.source))
            if self.rules.count_swapped_back or not self.rules.like_java:  # swap-gain
                self.back_bytes_per_s += other.bytes_per_s
        self.out_bytes_per_s += top.bytes_per_s

    def _swap(self, bytes_per_s: float) -> list[TopBundle] | None:
        """Return bundles of the target to swap for one of ``bytes_per_s``, None if none fit."""
        if not self.rules.transfer or self.spare is None:
            return None
        net = self.out_bytes_per_s - self.back_bytes_per_s
        source = self.source_bytes_per_s - net - bytes_per_s
        target = self.target_bytes_per_s + net + bytes_per_s
        ceiling = self.source_bytes_per_s
        found: list[TopBundle] = []
        for other in self.spare:
            size = other.bytes_per_s
            # swap-unchecked
            may_move = self._may_take if self.rules.like_java else self._may_leave
            if size == 0 or not may_move(other.bundle, self.source):
                continue
            if source + size < ceiling and target - size < ceiling:
                found.append(other)
                source += size
                target -= size
                if target <= source < _SWAP_CEILING * ceiling:
                    return found
        return None

    def _may_leave(self, bundle: BundleId, target: BrokerId) -> bool:
        if namespace_of(bundle) in self.rules.excluded_namespaces:
            return False
        if bundle in self.view.recently_moved or bundle in self.view.moved:
            return False
        return self._may_take(bundle, target)

    def _may_take(self, bundle: BundleId, target: BrokerId) -> bool:
        return self.rules.may_take(self.view, bundle, target)


def divided(part: float, whole: float) -> float:
    """Return ``part / whole`` with floating-point semantics: division by zero raises no error."""
    if whole != 0:
        return part / whole
    return math.nan if part == 0 or math.isnan(part) else math.copysign(math.inf, part)
