"""Planned traffic: topic names, shares of the traffic, and the time at which each message is due.

Pure: placement, seed and time are arguments.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import HashName, position
from loadmanager.core.ids import BrokerId, BundleId, TopicName

HOT_SHARE_OF_MEAN: Final = 2.2
"""The traffic of the hot broker's bundles together, as a multiple of the mean of a broker."""

MAX_HOT_SHARE: Final = 0.95
HOT_SLOPE: Final = 1.3
"""The traffic of the largest hot bundle divided by that of the smallest one."""


def topic_names(count: int, bounds: Boundaries, hash_name: HashName) -> tuple[TopicName, ...]:
    """Return ``count`` topics spread over the bundles as evenly as the number allows.

    Names are ``orders-00000`` and so on; a name is skipped if its bundle has enough topics.
    Without this, one bundle in five hundred would have no topic; it would never be looked up,
    and so never be owned.

    Raises:
        ValueError: there are fewer topics than bundles.
    """
    bundles = bounds.bundles
    if count < len(bundles):
        raise ValueError(f"{count} topics cannot cover {len(bundles)} bundles")
    room = {b: count // len(bundles) + (i < count % len(bundles)) for i, b in enumerate(bundles)}
    names: list[TopicName] = []
    serial = 0
    while len(names) < count:
        topic = TopicName("persistent", bounds.namespace, f"orders-{serial:05d}")
        serial += 1
        bundle = bounds.at(position(topic, hash_name))
        if room[bundle]:
            room[bundle] -= 1
            names.append(topic)
    return tuple(names)


def bundle_shares(placement: Mapping[BundleId, BrokerId], seed: int) -> dict[BundleId, float]:
    """Return each bundle's share of the traffic, with a sum of 1, so that one broker is hot.

    The broker with most bundles (the seed decides between equals) gets ``2.2 / N`` of the traffic,
    at most 0.95: 2.2 times the mean of N brokers. The other bundles share the rest evenly.

    The hot share is spread almost evenly over the hot bundles: the largest is 1.3 times the
    smallest. With 4 brokers and 32 bundles a hot bundle has about 0.07 of the traffic, and the mean
    of a broker is 0.25. Moving one changes a broker by 0.28 of the mean, and half of that is the
    best imbalance that a balancer can always reach, 1.14 times the mean. One bundle with a third of
    the hot traffic would make 1.25 unreachable, and the figure would describe the traffic, not the
    balancer. The traffic is steep within a bundle: see `topic_shares`.
    """
    counts = Counter(placement.values())
    rng = np.random.default_rng(seed)
    most = max(counts.values())
    candidates = sorted(broker for broker, count in counts.items() if count == most)
    hot_broker = candidates[int(rng.integers(len(candidates)))]
    hot = sorted(bundle for bundle, broker in placement.items() if broker == hot_broker)
    cold = sorted(set(placement) - set(hot))
    hot_share = min(MAX_HOT_SHARE, HOT_SHARE_OF_MEAN / len(counts)) if cold else 1.0
    sizes = rng.permutation(np.linspace(HOT_SLOPE, 1.0, len(hot)))
    shares = dict(zip(hot, (hot_share * sizes / sizes.sum()).tolist(), strict=True))
    return shares | dict.fromkeys(cold, (1.0 - hot_share) / max(1, len(cold)))


def topic_shares(
    bundle_of: Mapping[TopicName, BundleId], shares: Mapping[BundleId, float], seed: int
) -> dict[TopicName, float]:
    """Return each topic's share of the traffic: the k-th of a bundle gets ``1/k`` of it (Zipf)."""
    rng = np.random.default_rng(seed)
    topics: defaultdict[BundleId, list[TopicName]] = defaultdict(list)
    for topic in sorted(bundle_of, key=str):
        topics[bundle_of[topic]].append(topic)
    weights: dict[TopicName, float] = {}
    for bundle in sorted(topics):
        zipf = 1.0 / (1.0 + rng.permutation(len(topics[bundle])))
        portions = (shares[bundle] * zipf / zipf.sum()).tolist()
        weights |= zip(topics[bundle], portions, strict=True)
    return weights


class Schedule:
    """The times at which messages are due: every producer has a constant period.

    If the topic of each message was drawn at random, the rate of a broker over two seconds would
    vary by a tenth. Steady producers do not have this noise.

    Args:
        shares: each topic's share of the traffic; shares of zero never publish.
        rate_per_s: messages per second of all topics together.
        start_s: the start of the first period of each topic, which has its first message.
        seed: decides the phases.
    """

    def __init__(
        self, shares: Mapping[TopicName, float], *, rate_per_s: float, start_s: float, seed: int
    ) -> None:
        rng = np.random.default_rng(seed)
        self._topics: Sequence[TopicName] = sorted((t for t in shares if shares[t] > 0), key=str)
        self._periods_s = [1.0 / (rate_per_s * shares[topic]) for topic in self._topics]
        phases = rng.random(len(self._topics)).tolist()
        self._due = [
            (start_s + phase * period_s, index)
            for index, (phase, period_s) in enumerate(zip(phases, self._periods_s, strict=True))
        ]
        heapq.heapify(self._due)

    @property
    def next_s(self) -> float:
        """The time at which the next message is due, infinity without topics."""
        return self._due[0][0] if self._due else float("inf")

    def due(self, until_s: float) -> list[tuple[float, TopicName]]:
        """Remove and return all messages that are due up to ``until_s``, oldest first."""
        messages: list[tuple[float, TopicName]] = []
        while self._due and self._due[0][0] <= until_s:
            due_s, index = self._due[0]
            heapq.heapreplace(self._due, (due_s + self._periods_s[index], index))
            messages.append((due_s, self._topics[index]))
        return messages
