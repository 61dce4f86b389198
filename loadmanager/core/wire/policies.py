"""A namespace's bundle boundaries, inside Pulsar's local policies."""

import re
from typing import Any, Final

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import Namespace
from loadmanager.core.wire.fields import Fields, parse_object, to_json

_BOUND: Final = re.compile(r"0x[0-9a-fA-F]{8}")


def encode_boundaries(boundaries: Boundaries, existing: bytes | None = None) -> bytes:
    """Return local policies with these boundaries.

    ``existing`` is the present content of the node: its other fields (anti-affinity
    group, bookie group and whatever Pulsar adds) are kept.

    Raises:
        MalformedContent: ``existing`` is not a JSON object.
    """
    document: dict[str, Any] = {}
    if existing:
        document = parse_object(f"local policies of {boundaries.namespace}", existing)
    kept = document.get("bundles")
    document["bundles"] = {
        **(kept if isinstance(kept, dict) else {}),
        "boundaries": [f"0x{bound:08x}" for bound in boundaries.bounds],
        "numBundles": len(boundaries.bundles),
    }
    return to_json(document)


def decode_boundaries(where: str, namespace: Namespace, data: bytes, version: int) -> Boundaries:
    """Return the boundaries in local policies; ``version`` is that of the znode.

    Raises:
        MalformedContent: naming the field, what was found and what was expected.
    """
    bundles = Fields(where, parse_object(where, data)).inner("bundles")
    texts = bundles.texts("boundaries")
    if not all(_BOUND.fullmatch(text) for text in texts):
        bundles.refuse("boundaries", "bounds written 0x and eight hexadecimal digits")
    try:
        found = Boundaries(namespace, tuple(int(text, 16) for text in texts), version)
    except InvalidName as problem:
        bundles.refuse("boundaries", problem.expected)
    if bundles.count("numBundles", len(found.bundles)) != len(found.bundles):
        bundles.refuse("numBundles", f"{len(found.bundles)}, as there are boundaries for")
    return found
