"""The hash circle cut at every bound in sight, so that splits need no case of their own."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise

from loadmanager.core.ids import BundleId, Namespace, bundle_id, namespace_of, range_of


@dataclass(frozen=True, slots=True, order=True)
class Segment:
    """A range of one namespace that no bundle in sight cuts."""

    namespace: Namespace
    lower: int
    upper: int

    def __str__(self) -> str:
        """Return it as the bundle of that range."""
        return bundle_id(self.namespace, self.lower, self.upper)


def segments(bundles: Iterable[BundleId]) -> Mapping[BundleId, tuple[Segment, ...]]:
    """Return, for each bundle, the segments that it is made of."""
    wanted = set(bundles)
    bounds: defaultdict[Namespace, set[int]] = defaultdict(set)
    for bundle in wanted:
        bounds[namespace_of(bundle)].update(range_of(bundle))
    cut = {
        namespace: [Segment(namespace, *pair) for pair in pairwise(sorted(found))]
        for namespace, found in bounds.items()
    }
    return {bundle: _within(bundle, cut[namespace_of(bundle)]) for bundle in wanted}


def _within(bundle: BundleId, of_namespace: Iterable[Segment]) -> tuple[Segment, ...]:
    lower, upper = range_of(bundle)
    return tuple(one for one in of_namespace if lower <= one.lower and one.upper <= upper)
