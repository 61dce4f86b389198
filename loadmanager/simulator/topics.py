"""The topics of a scenario: their names, their bundles, and their base rates.

Topics have names that are hashed like in a broker into bundle ranges, so the distribution of topics
over bundles is as uneven as in a cluster.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.bundles import Boundaries
from loadmanager.core.columns import Indices
from loadmanager.core.hashing import crc32
from loadmanager.core.ids import BundleId, Namespace, parse_full_topic
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.scenario.loads import Even, Hot, Load, LogNormal, Skew, Zipf

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Share:
    """The part of one load in each bundle of its namespace, before patterns.

    ``rows`` are the rows of the bundles, ``topics`` the number of topics in each. ``profile`` are
    the rates per message in: messages in (1), messages out, bytes in and bytes out.
    """

    load: Load
    rows: slice
    topics: Counts
    msgs_in_per_s: FloatArray
    profile: FloatArray


@dataclass(frozen=True, eq=False, kw_only=True)
class Topics:
    """All K bundles of a scenario and their topics.

    ``namespaces`` has the rows of each namespace's bundles, which are contiguous in the
    order of their ranges. ``traced`` is the bundle row of each topic of the trace.
    """

    bundles: tuple[BundleId, ...]
    namespaces: Mapping[Namespace, slice]
    topics: Counts
    producers: Counts
    consumers: Counts
    shares: tuple[Share, ...]
    traced: Indices

    @classmethod
    def of(
        cls,
        loads: Sequence[Load],
        traced: Sequence[str],
        traced_bundles: int,
        rng: np.random.Generator,
    ) -> "Topics":
        """Return the topics of loads and of a trace; ``rng`` draws their sizes.

        Namespaces that are only in the trace have ``traced_bundles`` each. A topic of the trace
        has one producer and one consumer.
        """
        counts: dict[Namespace, int] = {}
        for load in loads:
            counts.setdefault(load.namespace, load.bundles)
        for topic in traced:
            counts.setdefault(parse_full_topic(topic).namespace, traced_bundles)
        cut = {name: Boundaries.even(name, count) for name, count in counts.items()}
        rows = _rows(counts)
        found = [_traced_row(topic, cut, rows) for topic in traced]
        traced_rows = np.array(found, dtype=np.intp)
        topics = np.bincount(traced_rows, minlength=sum(counts.values())).astype(np.int64)
        clients = np.stack([topics, topics]).astype(np.float64)
        shares = _shares(loads, cut, rows, rng)
        for share in shares:
            topics[share.rows] += share.topics
            each = [share.load.producers_per_topic, share.load.consumers_per_topic]
            clients[:, share.rows] += np.outer(each, share.topics)
        producers, consumers = np.rint(clients).astype(np.int64)
        return cls(
            bundles=tuple(bundle for bounds in cut.values() for bundle in bounds.bundles),
            namespaces=rows,
            topics=topics,
            producers=producers,
            consumers=consumers,
            shares=shares,
            traced=traced_rows,
        )


def topic_positions(namespace: Namespace, first: int, count: int) -> Counts:
    """Return the hashes of the topics ``persistent://{namespace}/topic-{first}`` and so on."""
    prefix = f"persistent://{namespace}/topic-"
    numbers = range(first, first + count)
    return np.fromiter((crc32(f"{prefix}{n}") for n in numbers), dtype=np.int64, count=count)


def weights(skew: Skew, count: int, rng: np.random.Generator) -> FloatArray:
    match skew:
        case Even():
            drawn = np.ones(count)
        case Zipf(exponent=exponent):
            drawn = rng.permutation(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
        case LogNormal(sigma=sigma):
            drawn = rng.lognormal(sigma=sigma, size=count)
        case Hot(topics=hot, share=share):
            if hot >= count:
                return np.full(count, 1.0 / count)
            found = np.full(count, (1.0 - share) / (count - hot))
            found[rng.choice(count, size=hot, replace=False)] = share / hot
            return found
    return np.asarray(drawn / drawn.sum())


def _rows(counts: Mapping[Namespace, int]) -> dict[Namespace, slice]:
    found: dict[Namespace, slice] = {}
    start = 0
    for namespace, count in counts.items():
        found[namespace] = slice(start, start + count)
        start += count
    return found


def _shares(
    loads: Sequence[Load],
    cut: Mapping[Namespace, Boundaries],
    rows: Mapping[Namespace, slice],
    rng: np.random.Generator,
) -> tuple[Share, ...]:
    found = []
    first = dict.fromkeys(cut, 0)
    for load in loads:
        name = load.namespace
        found.append(_share(load, cut[name], rows[name], first[name], rng))
        first[name] += load.topics
    return tuple(found)


def _share(load: Load, cut: Boundaries, rows: slice, first: int, rng: np.random.Generator) -> Share:
    """Return the parts of ``load`` in bundles; its topics are numbered from ``first`` on."""
    bundles = len(cut.bundles)
    if load.over == "topics":
        inner = np.array(cut.bounds[1:-1], dtype=np.int64)
        row = np.searchsorted(
            inner, topic_positions(load.namespace, first, load.topics), side="right"
        )
        own: Counts = np.bincount(row, minlength=bundles).astype(np.int64)
        drawn = weights(load.skew, load.topics, rng)
        portion = np.bincount(row, drawn, minlength=bundles).astype(np.float64)
    else:
        own = np.diff(np.arange(bundles + 1, dtype=np.int64) * load.topics // bundles)
        portion = np.zeros(bundles, dtype=np.float64)
        having = np.flatnonzero(own)
        portion[having] = weights(load.skew, len(having), rng)
    size, fan_out = load.message_bytes, load.fan_out
    return Share(
        load=load,
        rows=rows,
        topics=own,
        msgs_in_per_s=load.msgs_in_per_s * portion,
        profile=np.array([1.0, fan_out, size, size * fan_out]),
    )


def _traced_row(
    topic: str, cut: Mapping[Namespace, Boundaries], rows: Mapping[Namespace, slice]
) -> int:
    namespace = parse_full_topic(topic).namespace
    inner = bisect_right(cut[namespace].bounds, crc32(topic), 1, len(cut[namespace].bundles))
    return int(rows[namespace].start) + inner - 1
