"""A namespace's policies, its tenant, and its anti-affinity group, in Pulsar's forms."""

from collections.abc import Mapping
from typing import Any

from loadmanager.core.bundles import Boundaries
from loadmanager.core.fields import parse_object, to_json

_GROUP = "namespaceAntiAffinityGroup"


def encode_tenant(cluster: str) -> bytes:
    """Return the content of a new tenant's node: no administrator, allowed in ``cluster``."""
    return to_json({"adminRoles": [], "allowedClusters": [cluster]})


def encode_policies(policies: Mapping[str, Any], boundaries: Boundaries, cluster: str) -> bytes:
    """Return the content of a new namespace's policies, with a copy of its bundles."""
    document = {"replication_clusters": [cluster], **policies}
    return to_json({**document, "bundles": bundles_to_json(boundaries)})


def bundles_to_json(boundaries: Boundaries) -> dict[str, Any]:
    """Return boundaries as Pulsar's ``BundlesData``."""
    bounds = [f"0x{bound:08x}" for bound in boundaries.bounds]
    return {"boundaries": bounds, "numBundles": len(boundaries.bundles)}


def with_anti_affinity(where: str, data: bytes, group: str) -> bytes:
    """Return local policies with that anti-affinity group, without one for "".

    Raises:
        MalformedContent: ``data`` is not a JSON object.
    """
    document = parse_object(where, data)
    document.pop(_GROUP, None)
    if group:
        document[_GROUP] = group
    return to_json(document)
