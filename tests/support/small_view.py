from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadmanager.core.averages import Average, BundleAverages
from loadmanager.core.cluster import ClusterView, TopBundle
from loadmanager.core.columns import Listing
from loadmanager.core.ids import BrokerId, BundleId, Namespace, bundle_id
from loadmanager.core.load import BundleStats
from loadmanager.core.load_tracker import BrokerLoad, LoadTracker
from loadmanager.core.rates import Rates
from loadmanager.core.scores import ResourceWeights


def view_of(
    loads: Iterable[BrokerLoad],
    averages: Mapping[BundleId, BundleAverages],
    *,
    now_s: float = 0.0,
    recently_moved: Iterable[BundleId] = (),
    weights: ResourceWeights | None = None,
    columns: Mapping[str, Mapping[str, float]] | None = None,
    **given: Any,
) -> ClusterView:
    """``columns`` are figures by broker that a tracker would compute."""
    tracker = LoadTracker(weights=weights)
    for load in loads:
        tracker.put(load)
    tracker.seed(averages)
    view = tracker.view(now_s, **given)
    brokers = view.brokers
    for name, figures in (columns or {}).items():
        column = getattr(brokers, name).copy()
        column[[brokers.index[BrokerId(broker)] for broker in figures]] = [*figures.values()]
        brokers = replace(brokers, **{name: column})
    return replace(view, brokers=brokers, recently_moved=frozenset(recently_moved))


def bundle(number: int, namespace: str = "t/n") -> BundleId:
    return bundle_id(Namespace(namespace), number * 16, number * 16 + 16)


def _load(name: str, cpu: float, sizes: Mapping[BundleId, float]) -> BrokerLoad:
    total = sum(sizes.values())
    return BrokerLoad(
        broker=BrokerId(name),
        usage=(cpu * 800, 0.0, 0.0, 0.0, 0.0),
        limit=(800.0, 0.0, 0.0, 0.0, 0.0),
        totals=Rates(total, 0.0, total, 0.0),
        listing=Listing.of({one: BundleStats(bytes_in_per_s=size) for one, size in sizes.items()}),
    )


def _averages(size: float) -> BundleAverages:
    rates = Rates(size, 0.0, size, 0.0)
    return BundleAverages(Average(10, 10, rates), Average(1000, 10, rates))


def owner_of(view: ClusterView, bundle: BundleId) -> BrokerId | None:
    return view.moved.get(bundle) or view.listed_owner(bundle)


def make_view(
    brokers: Mapping[str, tuple[float, Mapping[int, float]]],
    changed: Mapping[str, Mapping[str, Any]] | None = None,
    **given: Any,
) -> ClusterView:
    """Return the view of ``{broker: (cpu fraction, {bundle: size})}``.

    A size is the bundle's bytes and messages per second, all inbound. ``changed`` maps
    brokers to fields of `BrokerLoad`; other keywords go to `view_of`.
    """
    loads = []
    averages = {}
    for name, (cpu, numbered) in brokers.items():
        sizes = {bundle(number): size for number, size in numbered.items()}
        averages.update({one: _averages(size) for one, size in sizes.items()})
        loads.append(replace(_load(name, cpu, sizes), **(changed or {}).get(name, {})))
    return view_of(loads, averages, **given)


def heaviest(
    loads: Mapping[str, tuple[float, Sequence[float]]], *, now_s: float = 1000.0, **given: Any
) -> ClusterView:
    """Return a view for TransferShedder: load and top bundles, ascending, of each broker.

    Fields of `BrokerLoad`, and ``bytes_ema``, are ``given`` for all brokers, or by broker.
    """
    made, tops, bytes_ema = [], {}, {}
    for place, (name, (_, sizes)) in enumerate(loads.items()):
        total = sum(sizes)
        fields = {"seen_s": 1000.0, "bytes_ema": total} | {
            field: one.get(name, 1000.0) if isinstance(one, Mapping) else one
            for field, one in given.items()
        }
        bytes_ema[name] = fields.pop("bytes_ema")
        made.append(BrokerLoad(broker=BrokerId(name), totals=Rates(0.0, 0.0, total), **fields))
        tops[BrokerId(name)] = [
            TopBundle(bundle(100 * place + k), size) for k, size in enumerate(sizes)
        ]
    emas = {"load_ema": {name: load for name, (load, _) in loads.items()}, "bytes_ema": bytes_ema}
    return replace(view_of(made, {}, now_s=now_s, columns=emas), top_bundles=tops)
