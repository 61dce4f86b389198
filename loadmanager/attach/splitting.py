"""Proposed splits: the bundles, and the position of each cut."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from loadmanager.attach.orders import CUT_AT
from loadmanager.attach.sampling import BrokerSample
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskKind
from loadmanager.core.bundle_traffic import topics_in
from loadmanager.core.even_rates import RatePlan
from loadmanager.core.ids import BrokerId, BundleId, range_of
from loadmanager.core.orders import SplitOrder
from loadmanager.core.plan import Cause
from loadmanager.core.rate_splits import evenest_cut, worth_cutting
from loadmanager.core.rates import total


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProposal:
    """One proposed split; ``share_of_mean`` is the bundle's load over the mean of the brokers."""

    bundle: BundleId
    broker: BrokerId
    cut: int
    share_of_mean: float

    def task(self) -> BundleTask:
        """Return the split for the task controller; both parts stay at their broker."""
        task = proposed(TaskKind.SPLIT, self.bundle, self.broker, self.broker, Cause.OVERSIZED)
        return replace(task, splits={self.bundle: SplitOrder(CUT_AT, (self.cut,))})

    def reason(self) -> str:
        """Return why, in one line."""
        return (
            f"it has {self.share_of_mean:.2f} times the mean of a broker, and moves alone do not "
            "even out the load"
        )


def proposed(
    kind: TaskKind, bundle: BundleId, source: BrokerId | None, target: BrokerId, cause: Cause
) -> BundleTask:
    """Return a task for the task controller; it is outdated if the bundle leaves ``source``."""
    return BundleTask(
        kind=kind,
        bundles=(bundle,),
        source=source,
        target=target,
        cause=cause,
        asked_by=AskedBy.BALANCING,
        planned={} if source is None else {bundle: source},
    )


def proposed_splits(
    samples: Mapping[BrokerId, BrokerSample], stays: Collection[BundleId], plan: RatePlan
) -> tuple[SplitProposal, ...]:
    """Return the splits, the largest bundle first; none if moves are enough."""
    whole = total([sample.total for sample in samples.values()])
    msgs, size = (rate / max(len(samples), 1) for rate in (whole.msgs_per_s, whole.bytes_per_s))
    found: list[SplitProposal] = []
    for broker, sample in samples.items():
        for bundle, one in sample.bundles.items():
            share = max(_share(one.msgs_per_s, msgs), _share(one.bytes_per_s, size))
            if bundle in stays or not worth_cutting(share, plan.planned_max_over_mean):
                continue
            cut = evenest_cut(range_of(bundle)[1], topic_loads(sample, bundle, msgs, size))
            if cut is not None:
                found.append(
                    SplitProposal(bundle=bundle, broker=broker, cut=cut, share_of_mean=share)
                )
    return tuple(sorted(found, key=lambda one: (-one.share_of_mean, one.bundle)))


def topic_loads(
    sample: BrokerSample, bundle: BundleId, msgs: float, size: float
) -> Iterator[tuple[int, float]]:
    """Yield hash position and load of each topic in a bundle, relative to ``msgs`` and ``size``."""
    for name, _, at in topics_in(bundle, sample.topics):
        rates = sample.topics[name]
        yield at, _share(rates.msgs_per_s, msgs) + _share(rates.bytes_per_s, size)


def _share(value: float, mean: float) -> float:
    return value / mean if mean > 0 else 0.0
