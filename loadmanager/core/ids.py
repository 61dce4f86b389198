"""Names of brokers, namespaces, bundles and topics, as Pulsar writes them.

All are plain strings with distinct types: a round uses hundreds of thousands of them as
dictionary keys, and the hash of a string is computed only once. Text from outside becomes such a
name only through one of the ``parse_`` functions here.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal, NewType

from loadmanager.core.errors import InvalidName

BrokerId = NewType("BrokerId", str)
"""``host:port`` of the broker's web service, Pulsar's broker id."""

Namespace = NewType("Namespace", str)
"""``tenant/namespace``."""

BundleId = NewType("BundleId", str)
"""``tenant/namespace/0xLLLLLLLL_0xUUUUUUUU``."""

Domain = Literal["persistent", "non-persistent", "topic", "segment"]
"""``topic`` is Pulsar's newer domain of scalable topics; their messages are in topics of
``segment``, whose local name is ``parent/LLLL-UUUU-number``."""

DOMAINS: Final[tuple[Domain, ...]] = ("persistent", "non-persistent", "topic")
"""The domains of topics that users name."""

_EVERY_DOMAIN: Final[tuple[Domain, ...]] = (*DOMAINS, "segment")

# Not "." and "..": HTTP clients and proxies remove them from the path of a URL.
_ENTITY_TEXT: Final = r"(?!\.{1,2}(?:/|\Z))[-=:.\w]+"
_ENTITY: Final = re.compile(_ENTITY_TEXT, re.ASCII)
_BROKER: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[-.\w]+):(\d{1,5})", re.ASCII)
_BUNDLE: Final = re.compile(
    rf"({_ENTITY_TEXT}/{_ENTITY_TEXT})/0x([0-9a-f]{{8}})_0x([0-9a-f]{{8}})", re.ASCII
)
_OWN_NAMESPACE: Final = re.compile(r"(?:pulsar|sla-monitor)/[^:]+:\d+", re.ASCII)
_MAX_PORT: Final = 65_535


@dataclass(frozen=True, slots=True)
class TopicName:
    """A full topic name. The hash of its ``str()`` determines the bundle.

    A partition of a topic is a separate topic: ``-partition-N`` is part of ``local``. ``local``
    may contain any character: over HTTP a ``/`` in it is encoded as ``%2F``.
    """

    domain: Domain
    namespace: Namespace
    local: str

    def __str__(self) -> str:
        """Return ``domain://tenant/namespace/local``."""
        return f"{self.domain}://{self.namespace}/{self.local}"


def parse_broker(text: str) -> BrokerId:
    """Raises `InvalidName`: the text is not ``host:port`` with a port from 1 to 65535."""
    found = _BROKER.fullmatch(text)
    if not found or not 0 < int(found[2]) <= _MAX_PORT:
        raise InvalidName("broker", text, "host:port")
    return BrokerId(text)


def parse_namespace(text: str) -> Namespace:
    """Return ``text`` as a namespace.

    Raises `InvalidName`: the text is not ``tenant/namespace`` of letters, digits and ``-=:._``, or
    one of the two is ``.`` or ``..``.
    """
    parts = text.split("/")
    if len(parts) != 2 or not all(_ENTITY.fullmatch(part) for part in parts):  # noqa: PLR2004 - tenant and name
        expected = "tenant/namespace of letters, digits and -=:._, neither of them . or .."
        raise InvalidName("namespace", text, expected)
    return Namespace(text)


def bundle_id(namespace: Namespace, lower: int, upper: int) -> BundleId:
    return bundle_ids(namespace, (lower, upper))[0]


def bundle_ids(namespace: Namespace, bounds: Sequence[int]) -> tuple[BundleId, ...]:
    # Each sidecar formats some ten thousand of them for each large namespace.
    edges = [f"0x{bound:08x}" for bound in bounds]
    return tuple(BundleId(f"{namespace}/{low}_{high}") for low, high in pairwise(edges))


def parse_bundle(text: str) -> BundleId:
    """Raises `InvalidName`: not ``tenant/namespace/0xLLLLLLLL_0xUUUUUUUU`` with L below U."""
    # A single pattern, since sidecars read lists of many thousands of names. Eight lower-case
    # hexadecimal digits sort as their numbers.
    found = _BUNDLE.fullmatch(text)
    if not found or found[2] >= found[3]:
        expected = (
            "tenant/namespace/0xLLLLLLLL_0xUUUUUUUU, L below U, tenant and namespace of letters, "
            "digits and -=:._, neither of them . or .."
        )
        raise InvalidName("bundle", text, expected)
    return BundleId(text)


def namespace_of(bundle: BundleId) -> Namespace:
    return Namespace(bundle.rpartition("/")[0])


def belongs_to_a_broker(bundle: BundleId) -> bool:
    """Return whether this is a broker's own heartbeat or SLA bundle; these never move.

    Their namespaces are ``pulsar/host:port`` and ``sla-monitor/host:port``;
    ``pulsar/system`` is not one of them.
    """
    return _OWN_NAMESPACE.fullmatch(namespace_of(bundle)) is not None


def range_of(bundle: BundleId) -> tuple[int, int]:
    """Return the lower and upper bound of a bundle; the upper one belongs to the next bundle."""
    lower, upper = bundle.rpartition("/")[2].split("_")
    return int(lower, 16), int(upper, 16)


def parse_topic(text: str) -> TopicName:
    """Return a topic name from a single text, as in clients and configuration.

    ``local`` alone is in ``persistent://public/default``; ``tenant/namespace/local`` is persistent.
    Four-part names (with a cluster) ended with Pulsar's PIP-457. Raises `InvalidName`: the text has
    none of these forms.
    """
    domain, separator, rest = text.partition("://")
    if not separator:
        domain, rest = "persistent", text
    parts = rest.split("/", 2 if domain == "segment" else -1)
    if not separator and len(parts) == 1:
        parts = ["public", "default", rest]
    if len(parts) != 3:  # noqa: PLR2004 - tenant, namespace, local
        raise InvalidName("topic", text, "domain://tenant/namespace/topic")
    return topic_from_parts(domain, parts[0], parts[1], parts[2])


def parse_full_topic(text: str) -> TopicName:
    """Return the topic whose ``str()`` is ``text``.

    Unlike in `parse_topic`, no part may be omitted, and everything after the namespace is the local
    name, including slashes. Raises `InvalidName`: the text is not a full name.
    """
    domain, separator, rest = text.partition("://")
    parts = rest.split("/", 2)
    if not separator or len(parts) != 3:  # noqa: PLR2004 - tenant, namespace, local
        raise InvalidName("topic", text, "domain://tenant/namespace/topic")
    return topic_from_parts(domain, parts[0], parts[1], parts[2])


def topic_from_parts(domain: str, tenant: str, namespace: str, local: str) -> TopicName:
    """Raises `InvalidName`: an unknown domain, an empty part or a forbidden character."""
    if domain not in _EVERY_DOMAIN:
        raise InvalidName("topic domain", domain, " or ".join(_EVERY_DOMAIN))
    if not local.strip():
        raise InvalidName("topic", local, "a name that is not blank")
    return TopicName(domain, parse_namespace(f"{tenant}/{namespace}"), local)
