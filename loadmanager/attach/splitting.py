from collections.abc import Collection, Iterator, Mapping

from loadmanager.attach.sampling import BrokerSample
from loadmanager.attach.tasks import Proposal
from loadmanager.core.bundle_task import TaskKind
from loadmanager.core.bundle_traffic import topics_in
from loadmanager.core.even_rates import RatePlan
from loadmanager.core.ids import BrokerId, BundleId, range_of
from loadmanager.core.plan import Cause
from loadmanager.core.rate_splits import evenest_cut, worth_cutting
from loadmanager.core.rates import total


def proposed_splits(
    samples: Mapping[BrokerId, BrokerSample], stays: Collection[BundleId], plan: RatePlan
) -> tuple[Proposal, ...]:
    whole = total([sample.total for sample in samples.values()])
    msgs, size = (rate / max(len(samples), 1) for rate in (whole.msgs_per_s, whole.bytes_per_s))
    found: list[tuple[float, Proposal]] = []
    for broker, sample in samples.items():
        for bundle, one in sample.bundles.items():
            share = max(_share(one.msgs_per_s, msgs), _share(one.bytes_per_s, size))
            if bundle in stays or not worth_cutting(share, plan.planned_max_over_mean):
                continue
            cut = evenest_cut(range_of(bundle)[1], topic_loads(sample, bundle, msgs, size))
            if cut is None:
                continue
            reason = f"it has {share:.2f} times the mean of a broker, and moves alone do not "
            proposal = Proposal(
                kind=TaskKind.SPLIT,
                bundle=bundle,
                source=broker,
                target=broker,
                cause=Cause.OVERSIZED,
                reason=f"{reason}even out the load",
                cut=cut,
            )
            found.append((share, proposal))
    found.sort(key=lambda one: (-one[0], one[1].bundle))
    return tuple(proposal for _, proposal in found)


def topic_loads(
    sample: BrokerSample, bundle: BundleId, msgs: float, size: float
) -> Iterator[tuple[int, float]]:
    """Yield hash position and load of each topic in a bundle, relative to ``msgs`` and ``size``."""
    for name, _, at in topics_in(bundle, sample.topics):
        rates = sample.topics[name]
        yield at, _share(rates.msgs_per_s, msgs) + _share(rates.bytes_per_s, size)


def _share(value: float, mean: float) -> float:
    return value / mean if mean > 0 else 0.0
