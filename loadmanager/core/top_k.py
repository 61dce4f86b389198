from collections.abc import Callable, Iterator, Mapping

import numpy as np

from loadmanager.core.cluster import TopBundle
from loadmanager.core.columns import Indices, Listing
from loadmanager.core.ids import BrokerId, BundleId, Namespace, belongs_to_a_broker, namespace_of
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.scores import FloatArray

Reported = Listing | tuple[TopBundle, ...] | Callable[[], Listing]

_SYSTEM_NAMESPACE = Namespace("pulsar/system")


def heaviest(
    listing: Listing,
    count: int,
    *,
    left_out: Callable[[Namespace], bool] = lambda _: False,
    like_java: bool = False,
) -> tuple[TopBundle, ...]:
    """Return the ``count`` heaviest bundles of a report by throughput, ascending.

    Bundles without throughput, of the system or of a ``left_out`` namespace are excluded. Ties
    are broken by message rate, then by name.

    Pulsar's accident `inbound-first`: inbound throughput is compared first, in steps of
    100 kB/s, then outbound, then the message rate in steps of 100, then sessions and
    topics, then the cache. A bundle with little inbound and much outbound traffic ranks low, and
    on a broker with many bundles it never becomes movable.
    """
    bytes_per_s = listing.rates[:, BYTES_IN] + listing.rates[:, BYTES_OUT]
    ascending = _order_like_java(listing) if like_java else _order(listing, bytes_per_s)
    found: list[TopBundle] = []
    for row in ascending[::-1].tolist():
        if len(found) >= count:
            break
        bundle = listing.names[row]
        if bytes_per_s[row] != 0 and not _is_system(bundle) and not left_out(namespace_of(bundle)):
            found.append(TopBundle(bundle, float(bytes_per_s[row])))
    return tuple(reversed(found))


class TopBundles(Mapping[BrokerId, tuple[TopBundle, ...]]):
    """The heaviest bundles of every broker, selected on access: most rounds access none.

    Of those ``reported``, listings may be made on access, too.
    """

    def __init__(
        self, reported: Mapping[BrokerId, Reported], count: int, *, like_java: bool
    ) -> None:
        self._reported = dict(reported)
        self._count = count
        self._like_java = like_java

    def having(self, reported: Mapping[BrokerId, Listing]) -> "TopBundles":
        return TopBundles({**self._reported, **reported}, self._count, like_java=self._like_java)

    def __getitem__(self, broker: BrokerId) -> tuple[TopBundle, ...]:
        found = self._reported[broker]
        if callable(found):
            found = found()
        if isinstance(found, Listing):
            found = heaviest(found, self._count, like_java=self._like_java)
            self._reported[broker] = found
        return found

    def __iter__(self) -> Iterator[BrokerId]:
        return iter(self._reported)

    def __len__(self) -> int:
        return len(self._reported)


def _order(listing: Listing, bytes_per_s: FloatArray) -> Indices:
    # The last key is the primary one; ties keep the order of names.
    msgs_per_s = listing.rates[:, MSGS_IN] + listing.rates[:, MSGS_OUT]
    return np.lexsort((msgs_per_s, bytes_per_s))


def _order_like_java(listing: Listing) -> Indices:
    rates = listing.rates
    return np.lexsort(
        (
            listing.cache_size_bytes // 100_000,
            (listing.topics + listing.sessions) // 500,
            _rounded((rates[:, MSGS_IN] + rates[:, MSGS_OUT]) / 100.0),
            _rounded(rates[:, BYTES_OUT] / 1e5),
            _rounded(rates[:, BYTES_IN] / 1e5),
        )
    )


def _rounded(values: FloatArray) -> FloatArray:
    return np.floor(values + 0.5)


def _is_system(bundle: BundleId) -> bool:
    return bundle.startswith(f"{_SYSTEM_NAMESPACE}/") or belongs_to_a_broker(bundle)
