"""What is to be known of topics that no real broker serves, when a test has failed."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from time import monotonic
from typing import Any, Final

from pulsar_traffic import Sends
from real_pulsar import CLUSTER, RealPulsar, lies_in

SILENT_S: Final = 5.0
_LOG_LINES: Final = 20
_MOST_CHARACTERS: Final = 700


@contextmanager
def unserved_told(cluster: RealPulsar, sends: Sends) -> Iterator[None]:
    try:
        yield
    except AssertionError as error:
        error.add_note(unserved(cluster, sends))
        raise


def unserved(cluster: RealPulsar, sends: Sends) -> str:
    now_s = monotonic()
    silent = {one: now_s - at_s for one, at_s in sends.stored_s.items() if now_s - at_s > SILENT_S}
    lines = [f"{topic}: no message stored for {for_s:.1f} s" for topic, for_s in silent.items()]
    for bundle in sorted({_bundle(cluster, topic) for topic in silent}):
        lines.append(f"{bundle}:")
        topic = next(one for one in silent if lies_in(one, bundle))
        for number, name in enumerate(cluster.brokers):
            owned = f"/admin/v2/brokers/{CLUSTER}/{name}/ownedNamespaces"
            listed = _asked(cluster, number, owned)
            serves = bundle in listed if isinstance(listed, dict) else listed
            found = _asked(cluster, number, f"/lookup/v2/topic/{topic.replace('://', '/')}")
            lines.append(f"  {name} lists it: {serves}; looks it up at: {found}")
        for number, name in enumerate(cluster.brokers):
            log = [line[:_MOST_CHARACTERS] for line in cluster.log(number) if bundle in line]
            lines += [f"  log of {name}:", *(f"    {line}" for line in log[-_LOG_LINES:])]
    return "\n".join(lines)


def _bundle(cluster: RealPulsar, topic: str) -> str:
    namespace = topic.partition("://")[2].rpartition("/")[0]
    bounds = cluster.json(f"/admin/v2/namespaces/{namespace}/bundles")["boundaries"]
    bundles = [f"{namespace}/{lower}_{upper}" for lower, upper in pairwise(bounds)]
    return next(one for one in bundles if lies_in(topic, one))


def _asked(cluster: RealPulsar, broker: int, path: str) -> Any:
    """Return what a broker answers, or why it does not."""
    try:
        return cluster.json(path, broker)
    except (OSError, ValueError) as error:
        return str(error)
