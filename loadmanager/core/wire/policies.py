import re
from collections.abc import Mapping
from itertools import repeat
from typing import Any, Final

from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.fields import Fields, is_unicode, parse_fields, parse_object, to_json
from loadmanager.core.ids import BrokerId, Namespace, parse_broker
from loadmanager.core.policies import IsolationPolicy

_BOUND: Final = re.compile(r"0x[0-9a-fA-F]{8}")
_GROUP: Final = "namespaceAntiAffinityGroup"
_PERCENT: Final = 100.0
_LONGEST_NUMBER: Final = 9
_LONGEST_SHOWN: Final = 200
MOST_POLICIES: Final = 10_000


def encode_boundaries(boundaries: Boundaries, existing: bytes | None = None) -> bytes:
    """Return local policies with these boundaries.

    ``existing`` is the present content of the node: its other fields (anti-affinity group, bookie
    group and whatever Pulsar adds) are kept. Raises `MalformedContent`: ``existing`` is not a JSON
    object.
    """
    document: dict[str, Any] = {}
    if existing:
        document = parse_object(f"local policies of {boundaries.namespace}", existing)
    kept = document.get("bundles")
    document["bundles"] = {
        **(kept if isinstance(kept, dict) else {}),
        **bundles_to_json(boundaries),
    }
    return to_json(document)


def decode_boundaries(where: str, namespace: Namespace, data: bytes, version: int) -> Boundaries:
    """``version`` is that of the znode."""
    bundles = parse_fields(where, data).inner("bundles")
    try:
        found = Boundaries(namespace, bounds_from(bundles, "boundaries"), version)
    except InvalidName as problem:
        bundles.refuse("boundaries", problem.expected)
    if bundles.count("numBundles", len(found.bundles)) != len(found.bundles):
        bundles.refuse("numBundles", f"{len(found.bundles)}, as there are boundaries for")
    return found


def bounds_from(fields: Fields, name: str) -> tuple[int, ...]:
    texts = fields.texts(name)
    if not all(map(_BOUND.fullmatch, texts)):
        fields.refuse(name, "bounds written 0x and eight hexadecimal digits")
    return tuple(map(int, texts, repeat(16)))


def decode_anti_affinity(where: str, data: bytes) -> str:
    return parse_fields(where, data).text(_GROUP, "")


def decode_isolation(where: str, data: bytes) -> dict[str, IsolationPolicy]:
    """Return the policies by their names, which are shown: lines and controls are escaped."""
    every = parse_fields(where, data)
    if (count := len(every.names())) > MOST_POLICIES:
        raise MalformedContent(where, f"{count:,} policies", f"at most {MOST_POLICIES:,}")
    return {_shown(name): _isolation_or_why(every, name) for name in every.names()}


def _shown(text: str) -> str:
    return text if text.isprintable() else ascii(text)[1:-1]


def _isolation_or_why(every: Fields, name: str) -> IsolationPolicy:
    """Return a policy; one of the wrong form, with those of its namespaces that can be read."""
    try:
        return isolation_from(every.inner(name))
    except MalformedContent as error:
        found = every.values()[name]
        one = found.get("namespaces") if isinstance(found, dict) else None
        texts = [one for one in (one if isinstance(one, list) else [one]) if isinstance(one, str)]
        namespaces = tuple(filter(is_unicode, texts))
        return IsolationPolicy(
            namespaces=namespaces, primary=(), malformed=_shown(str(error))[-_LONGEST_SHOWN:]
        )


def decode_failure_domain(where: str, data: bytes) -> tuple[BrokerId, ...]:
    return failure_domain_from(parse_fields(where, data))


def failure_domain_from(fields: Fields) -> tuple[BrokerId, ...]:
    return fields.parsed_texts("brokers", parse_broker)


def isolation_to_json(policy: IsolationPolicy) -> dict[str, Any]:
    parameters = {
        "min_limit": str(policy.min_limit),
        "usage_threshold": str(round(policy.usage_threshold * _PERCENT)),
    }
    return {
        "namespaces": list(policy.namespaces),
        "primary": list(policy.primary),
        "secondary": list(policy.secondary),
        "auto_failover_policy": {"policy_type": "min_available", "parameters": parameters},
        **({"malformed": policy.malformed} if policy.malformed else {}),
    }


def isolation_from(fields: Fields) -> IsolationPolicy:
    failover = fields.inner("auto_failover_policy").inner("parameters")
    return IsolationPolicy(
        namespaces=fields.texts("namespaces"),
        primary=fields.texts("primary"),
        secondary=fields.texts("secondary"),
        min_limit=_whole(failover, "min_limit", 1),
        usage_threshold=_whole(failover, "usage_threshold", 100) / _PERCENT,
        malformed=fields.text("malformed", ""),
    )


def _whole(fields: Fields, name: str, default: int) -> int:
    """Return a whole number, which Pulsar writes as text here."""
    text = fields.text(name, str(default))
    if not (text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER):
        fields.refuse(name, "a whole number as text")
    return int(text)


def encode_tenant(cluster: str) -> bytes:
    """Return the content of a new tenant's node: no administrator, allowed in ``cluster``."""
    return to_json({"adminRoles": [], "allowedClusters": [cluster]})


def encode_policies(policies: Mapping[str, Any], boundaries: Boundaries, cluster: str) -> bytes:
    document = {"replication_clusters": [cluster], **policies}
    return to_json({**document, "bundles": bundles_to_json(boundaries)})


def bundles_to_json(boundaries: Boundaries) -> dict[str, Any]:
    bounds = [f"0x{bound:08x}" for bound in boundaries.bounds]
    return {"boundaries": bounds, "numBundles": len(boundaries.bundles)}


def with_anti_affinity(where: str, data: bytes, group: str) -> bytes:
    """Return local policies with that anti-affinity group, without one for ""."""
    document = parse_object(where, data)
    document.pop(_GROUP, None)
    if group:
        document[_GROUP] = group
    return to_json(document)
