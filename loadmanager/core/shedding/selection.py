import numpy as np

from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.plan import Cause, Offer, Reason, Refusal
from loadmanager.core.scores import FloatArray


def largest_first(view: ClusterView, broker: int, sizes: FloatArray) -> Indices:
    """Return the bundle rows of a broker that may be shed, by size descending, ties by name.

    ``sizes`` holds the size of every bundle row of the view.
    """
    rows = view.owned.of(broker)
    rows = rows[view.selectable[rows]]
    return rows[np.argsort(-sizes[rows], kind="stable")]


def take_until(view: ClusterView, broker: int, sizes: FloatArray, need: float) -> list[int]:
    """Return the largest bundles of a broker that together reach ``need``.

    The one that reaches it is included, and at least one is always taken, as in Pulsar.

    Its accidents: `at-least-one` takes the largest bundle even if little is to be shed,
    so that one hot bundle moves from broker to broker; `idle-bundles` continues with bundles
    without traffic if all others together are too small. In safe mode the planner refuses
    both.
    """
    rows = largest_first(view, broker, sizes)
    if not len(rows):
        return []
    before = np.cumsum(sizes[rows])
    wanted = 1 + int(np.count_nonzero(before[:-1] < need))
    return [int(row) for row in rows[:wanted]]


def offers_of(view: ClusterView, row: int, need: float) -> list[Offer] | Refusal:
    """Return the largest bundles of an overloaded broker by throughput, or why there are none."""
    name = view.brokers.names[row]
    if view.owned.counts[row] <= 1:
        return Refusal(name, Reason.TOO_FEW_BUNDLES, f"{view.owned.counts[row]} bundles")
    rows = take_until(view, row, view.bundles.short_bytes_per_s, need)
    if not rows:
        return Refusal(name, Reason.NO_BUNDLE_FITS, "no bundle may be moved now")
    return [Offer(view.bundles.names[bundle], name, Cause.OVERLOADED) for bundle in rows]
