import json
from collections.abc import Collection, Mapping, Sized
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import NotPulsar, PulsarAdmin, shown
from loadmanager.core.bundle_traffic import topics_in
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import (
    BrokerId,
    BundleId,
    Namespace,
    TopicName,
    parse_bundle,
    parse_namespace,
)
from loadmanager.core.load import BrokerUrls
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.wire.policies import decode_isolation

_ABSENT: Final = frozenset({HTTPStatus.NOT_FOUND})
# In the order of the fields of `BrokerUrls`.
_KEYS: Final = ("httpUrl", "httpUrlTls", "brokerUrl", "brokerUrlTls")


def lookup_path(topic: TopicName) -> str:
    return f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"


async def read_readiness(admin: PulsarAdmin, url: str, name: str) -> str:
    """Return why a broker is not ready for bundles, "" if it is."""
    ready = await admin.text(f"{url}/admin/v2/brokers/ready")
    right = ready.strip() == "ok"
    return "" if right else f"{name} says {ready[:60]!r} of itself; expected 'ok'"


async def read_owned(
    admin: PulsarAdmin, url: str, cluster: str, broker: BrokerId, before: Sized = ()
) -> Mapping[BundleId, bool]:
    """Return the bundles, without those of version 1, and whether each is active.

    One that is not active is being unloaded: its topics are closed one by one. Raises as
    `PulsarAdmin.json`, and `NotPulsar`: the answer is no object, or is empty unlike ``before``.
    """
    where = f"{url}/admin/v2/brokers/{quote(cluster, safe='')}/{broker}/ownedNamespaces"
    answer = await admin.json(where, dict, "an object of bundles")
    owned: dict[BundleId, bool] = {}
    for name, status in answer.items():
        with suppress(InvalidName):
            closing = isinstance(status, dict) and status.get("is_active") is False
            owned[parse_bundle(name)] = not closing
    if before and not owned:
        raise NotPulsar(f"{where}: lists no bundle; expected about {len(before):,}, as before")
    return owned


async def read_lookup(admin: PulsarAdmin, url: str, topic: TopicName) -> BrokerUrls:
    """Return the URLs of the broker that serves a topic; Pulsar places it if none does."""
    where = f"{url}{lookup_path(topic)}"
    found = await admin.json(where, dict, "the lookup answer of a Pulsar broker")
    texts = [text if isinstance(text := found.get(key), str) else "" for key in _KEYS]
    urls = BrokerUrls(*texts)
    if not urls.http_url and not urls.http_url_tls:
        raise NotPulsar(f"{where}: no httpUrl; expected the lookup answer of a Pulsar broker")
    return urls


async def read_own_urls(admin: PulsarAdmin, url: str, broker: BrokerId) -> BrokerUrls:
    """Return the URLs by a lookup of the broker's heartbeat topic; raises as `read_lookup`."""
    topic = TopicName("persistent", Namespace(f"pulsar/{broker}"), "healthcheck")
    return await read_lookup(admin, url, topic)


async def read_partitions(admin: PulsarAdmin, url: str, topic: TopicName) -> int:
    """Return the number of partitions, 0 if a topic is not partitioned or does not exist."""
    local, expected = quote(topic.local, safe=""), "a number of partitions"
    where = f"{url}/admin/v2/{topic.domain}/{topic.namespace}/{local}/partitions"
    answer = await admin.json(where, dict, expected, absent=_ABSENT, instead='{"partitions": 0}')
    count = answer.get("partitions")
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise NotPulsar(f"{where}: answered {shown(json.dumps(answer))}; expected {expected}")
    return count


async def read_boundaries(admin: PulsarAdmin, url: str, namespace: Namespace) -> Boundaries | None:
    where, expected = f"{url}/admin/v2/namespaces/{namespace}/bundles", "the boundaries of bundles"
    answer = await admin.json(where, dict, expected, absent=_ABSENT)
    try:
        bounds = () if answer is None else answer.get("boundaries") or ()
        found = tuple(int(str(one), 16) for one in bounds)
        return None if answer is None else Boundaries(namespace, found)
    except (TypeError, ValueError, InvalidName):
        shows = shown(json.dumps(answer))
        raise NotPulsar(f"{where}: answered {shows}; expected {expected}") from None


async def read_tenants(admin: PulsarAdmin, url: str) -> list[str]:
    return await _names(admin, f"{url}/admin/v2/tenants")


async def read_namespaces(admin: PulsarAdmin, url: str, tenant: str) -> frozenset[Namespace]:
    """Return the namespaces of a tenant, none if it was deleted in the meantime."""
    found: set[Namespace] = set()
    where = f"{url}/admin/v2/namespaces/{quote(tenant, safe='')}"
    for name in await _names(admin, where, absent=_ABSENT):
        with suppress(InvalidName):
            found.add(parse_namespace(name))
    return frozenset(found)


async def _names(admin: PulsarAdmin, where: str, absent: Collection[int] = ()) -> list[str]:
    answer = await admin.json(where, list, "a list of names", absent=absent, instead="[]")
    if not all(isinstance(one, str) for one in answer):
        raise NotPulsar(f"{where}: answered {answer!r:.60}; expected a list of names")
    return list(answer)


async def read_topics(admin: PulsarAdmin, url: str, bundle: BundleId) -> tuple[TopicName, ...]:
    namespace, _, bounds = bundle.rpartition("/")
    # Older versions ignore the bundle, and list all of the namespace.
    answer = await admin.json(f"{url}/admin/v2/persistent/{namespace}?bundle={bounds}")
    names = map(str, answer if isinstance(answer, list) else ())
    return tuple(topic for _, topic, _ in topics_in(bundle, names))


# Time until isolation policies are read again from a cluster that had none: brokers log a stack
# trace at each such request.
NONE_FOR_S: Final = 60.0
_NONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.NO_CONTENT})


async def read_isolation(admin: PulsarAdmin, url: str, cluster: str) -> tuple[str, Policies]:
    """Return isolation policies as Pulsar's text, and parsed; raises as `PulsarAdmin.json`."""
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/namespaceIsolationPolicies"
    if monotonic() < admin.missing_until_s.get(where, 0.0):
        return "{}", NO_POLICIES
    answer = await admin.text(where, _NONE, none := "{}")
    if answer is none:
        admin.missing_until_s[where] = monotonic() + NONE_FOR_S
    try:
        return answer, Policies(isolation=decode_isolation(where, answer.encode()))
    except MalformedContent as error:
        raise NotPulsar(str(error)) from None


async def read_failure_domains(
    admin: PulsarAdmin, url: str, cluster: str
) -> Mapping[str, Mapping[str, Any]]:
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/failureDomains"
    expected = "failure domains by name, each a JSON object"
    found: dict[str, Any] = await admin.json(where, dict, expected, absent=_NONE, instead="{}")
    if not all(isinstance(one, dict) for one in found.values()):
        raise NotPulsar(f"{where}: expected {expected}")
    return found


async def read_anti_affinity_group(admin: PulsarAdmin, url: str, namespace: Namespace) -> str:
    """Return the anti-affinity group of a namespace, "" for none; raises as `PulsarAdmin.text`."""
    answer = await admin.text(f"{url}/admin/v2/namespaces/{namespace}/antiAffinity", _NONE)
    return answer.strip().strip('"')
