import functools

from loadmanager.core.bundles import Boundaries
from loadmanager.core.hashing import DEFAULT_HASH, lies_in, position
from loadmanager.core.ids import BundleId, TopicName, namespace_of, parse_topic


def topic_in(boundaries: Boundaries, bundle: BundleId) -> TopicName:
    if bundle not in boundaries.bundles:
        raise ValueError(f"{bundle} is none of {boundaries.bundles}")
    return topic_of(bundle)


@functools.lru_cache(maxsize=10_000)
def topic_of(bundle: BundleId) -> TopicName:
    for number in range(1_000_000):
        topic = parse_topic(f"persistent://{namespace_of(bundle)}/topic-{number}")
        if lies_in(position(topic, DEFAULT_HASH), bundle):
            return topic
    raise AssertionError(f"no topic falls in {bundle}")
