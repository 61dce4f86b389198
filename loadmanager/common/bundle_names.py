from typing import Final

from loadmanager.common.cluster_state import ClusterState
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import BundleId, Namespace, parse_bundle
from loadmanager.ports.administration import BundleUnknown, Missing
from loadmanager.ports.coordination import CoordinationError
from loadmanager.ports.lookup import NamespaceUnknown, Unavailable

_RANGES_NAMED: Final = 8


async def boundaries_of(cluster_state: ClusterState, namespace: Namespace) -> Boundaries:
    """Raises `NamespaceUnknown`, and `Unavailable`: its bundles cannot be read now."""
    try:
        boundaries = await cluster_state.boundaries(namespace)
    except (CoordinationError, MalformedContent) as error:
        raise Unavailable(f"the bundles of {namespace} cannot be read: {error}") from error
    if boundaries is None:
        raise NamespaceUnknown(f"namespace {namespace} does not exist")
    return boundaries


def bundle_in(boundaries: Boundaries, range_text: str) -> BundleId:
    """Raises `BundleUnknown`: there is no such bundle, or ``range_text`` is no range."""
    try:
        bundle = parse_bundle(f"{boundaries.namespace}/{range_text.lower()}")
    except InvalidName as error:
        raise BundleUnknown(str(error)) from error
    if bundle not in boundaries:
        known = boundaries.bundles
        ranges = ", ".join(one.rpartition("/")[2] for one in known[:_RANGES_NAMED])
        more = ", ..." if len(known) > _RANGES_NAMED else ""
        raise BundleUnknown(
            f"bundle range {range_text} not found in {boundaries.namespace}; it has {ranges}{more}"
        )
    return bundle


def check_cluster(cluster: str, ours: str) -> None:
    if cluster != ours:
        raise Missing(f"cluster {cluster} does not exist here; this one is {ours}")
