"""Names of many bundles: their ranges, grouped by namespace."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from loadmanager.core.fields import Fields
from loadmanager.core.ids import BundleId, namespace_of, parse_bundle


def by_namespace(bundles: Iterable[BundleId]) -> Iterator[tuple[str, list[BundleId]]]:
    """Yield each namespace with its bundles, all sorted."""
    for namespace, group in groupby(sorted(bundles), key=namespace_of):
        yield namespace, list(group)


def ranges_of(bundles: Iterable[BundleId]) -> dict[str, list[str]]:
    """Return the names as JSON: the sorted ranges of each namespace."""
    return {
        namespace: [range_text(bundle) for bundle in group]
        for namespace, group in by_namespace(bundles)
    }


def range_text(bundle: BundleId) -> str:
    """Return a bundle's name without the namespace."""
    return bundle.rpartition("/")[2]


def bundles_from(fields: Fields, name: str) -> tuple[BundleId, ...]:
    """Return the bundles in a field that `ranges_of` made, in its order; an absent one is empty."""
    ranges = fields.inner(name)
    names = [
        f"{namespace}/{text}" for namespace in ranges.names() for text in ranges.texts(namespace)
    ]
    return tuple(ranges.keys(names, parse_bundle))
