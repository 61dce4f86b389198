"""Orders (the bundles that each broker is to own), their changes, and owned lists.

Each broker has one znode for its orders and one for its owned list, each with a single writer:
JSON with the ranges grouped by namespace, compressed if large. A bundle takes about 25 bytes, or
about 8 compressed, so that a broker with 20,000 bundles stays far below ZooKeeper's limit of 1
MB.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Self

from loadmanager.core.bounds import EPOCH, HASH
from loadmanager.core.fields import At, Fields, Form, packed, to_json, unpacked_object
from loadmanager.core.ids import BrokerId, BundleId, parse_bundle
from loadmanager.core.wire.shared_forms import bundles_from, by_namespace, range_text, ranges_of

# Enough for 100,000 bundles, each with the broker that it is handed over to.
LARGEST_UNPACKED_BYTES: Final = 8 * 1024 * 1024
_COMMIT_NODES: Final = 100
_ORDERS_FRACTION: Final = 0.9
_NO_HANDOVERS: Final[Mapping[BundleId, BrokerId]] = MappingProxyType({})
_NO_SPLITS: Final[Mapping[BundleId, "SplitOrder"]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class SplitOrder:
    algorithm: str
    positions: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Orders:
    """The bundles that one broker should own, as ordered by the leader of ``epoch``.

    ``handovers`` maps bundles to release to their next owners, so that clients are redirected
    directly. A split order stands until the namespace's boundaries show the parts.
    """

    epoch: int
    bundles: frozenset[BundleId] = frozenset()
    handovers: Mapping[BundleId, BrokerId] = field(default_factory=lambda: _NO_HANDOVERS)
    splits: Mapping[BundleId, SplitOrder] = field(default_factory=lambda: _NO_SPLITS)


@dataclass(frozen=True, slots=True)
class OwnedList:
    """Bundles with the fencing tokens of their locks; those in ``loading`` are not served yet."""

    tokens: Mapping[BundleId, int]
    loading: frozenset[BundleId] = frozenset()


@dataclass(frozen=True, slots=True)
class OrderChanges:
    assigned: Mapping[BundleId, BrokerId] = field(default_factory=dict)
    splits: Mapping[BundleId, SplitOrder | None] = field(default_factory=dict)
    gone: Collection[BundleId] = ()

    def __bool__(self) -> bool:
        return bool(self.assigned or self.splits or self.gone)

    def apply(
        self, assigned: Mapping[BundleId, BrokerId], splits: Mapping[BundleId, SplitOrder]
    ) -> tuple[dict[BundleId, BrokerId], dict[BundleId, SplitOrder]]:
        after = {**assigned, **self.assigned}
        for bundle in self.gone:
            after.pop(bundle, None)
        cuts = {
            bundle: order
            for bundle, order in {**splits, **self.splits}.items()
            if order is not None and bundle in after
        }
        return after, cuts

    def less(self, full: Collection[BrokerId], assigned: Mapping[BundleId, BrokerId]) -> Self:
        """Return half of the changes for brokers whose orders are too large, all for the others."""
        fitting = {b: broker for b, broker in self.assigned.items() if broker not in full}
        for broker in sorted(full):
            bundles = sorted(bundle for bundle, to in self.assigned.items() if to == broker)
            fitting |= dict.fromkeys(bundles[: len(bundles) // 2], broker)
        return type(self)(
            fitting,
            {
                b: order
                for b, order in self.splits.items()
                if self.assigned.get(b, assigned.get(b)) not in full
            },
            frozenset(b for b in self.gone if assigned.get(b) not in full),
        )


def largest_orders_bytes(max_request_bytes: int) -> int:
    return int(_ORDERS_FRACTION * max_request_bytes)


def next_chunk(contents: Mapping[BrokerId, bytes], most_bytes: int) -> list[BrokerId]:
    """Return the next brokers whose orders fit into one commit, in the given order."""
    chunk: list[BrokerId] = []
    size = 0
    for broker, content in contents.items():
        size += len(content)
        if chunk and (size > most_bytes or len(chunk) == _COMMIT_NODES):
            break
        chunk.append(broker)
    return chunk


def expected_requests(changed: int, brokers: int, read_at_once: int) -> int:
    """Return how many requests orders cause in the whole cluster, besides heartbeats.

    Each of the ``changed`` brokers reads its orders, commits its locks with its owned list, and
    writes the list again once it serves (docs/scale.md). The leader reads both changes of each
    list; so do the other of all ``brokers`` where there are at most ``read_at_once``.
    """
    lists = 2 * changed
    read_by_others = lists if brokers <= read_at_once else 0
    return 3 * changed + lists + (brokers - 1) * read_by_others


_SPLIT: Final = Form(
    SplitOrder,
    positions=At(
        read=lambda fields, name: fields.counts(name, None, HASH) if name in fields.names() else ()
    ),
)
_ORDERS: Final = Form(
    Orders,
    epoch=At(bound=EPOCH),
    bundles=At(read=lambda fields, name: frozenset(bundles_from(fields, name)), write=ranges_of),
    handovers=At(write=lambda every: dict(sorted(every.items()))),
    splits=At(
        read=lambda fields, name: fields.mapped(name, parse_bundle, _SPLIT.inner),
        write=lambda every: {name: _SPLIT.to_json(one) for name, one in sorted(every.items())},
    ),
)


def encode_orders(orders: Orders) -> bytes:
    return packed(_ORDERS.encode(orders))


def decode_orders(where: str, data: bytes) -> Orders:
    """Raises `MalformedContent`: the content was not written by `encode_orders`."""
    return _ORDERS.read(Fields(where, unpacked_object(where, data, LARGEST_UNPACKED_BYTES)))


def encode_owned(tokens: Mapping[BundleId, int | None], loading: Iterable[BundleId] = ()) -> bytes:
    """Return the content of ``/loadbalance/owned/{broker}``.

    The commit that creates a lock also sets the list: the fencing token of a new bundle is None,
    which stands for the list's own mzxid.
    """
    document: dict[str, object] = {
        "bundles": {
            namespace: {range_text(bundle): tokens[bundle] for bundle in bundles}
            for namespace, bundles in by_namespace(tokens)
        }
    }
    unserved = ranges_of(loading)
    if unserved:
        document["loading"] = unserved
    return packed(to_json(document))


def decode_owned(where: str, data: bytes, mzxid: int) -> OwnedList:
    """``mzxid`` is that of the node as read. Raises `MalformedContent`: not from `encode_owned`."""
    fields = Fields(where, unpacked_object(where, data, LARGEST_UNPACKED_BYTES))
    tokens, bundles = dict[BundleId, int](), fields.inner("bundles")
    for namespace in bundles.names():
        ranges = bundles.inner(namespace)
        named = bundles.keys((f"{namespace}/{one}" for one in ranges.names()), parse_bundle)
        for bundle, (name, token) in zip(named, ranges.values().items(), strict=True):
            if token is not None and not EPOCH.holds(token):
                ranges.refuse(name, f"{EPOCH.expected}, or null")
            tokens[bundle] = mzxid if token is None else token
    return OwnedList(MappingProxyType(tokens), frozenset(bundles_from(fields, "loading")))
