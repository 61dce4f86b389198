import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from http import HTTPStatus
from time import monotonic
from typing import Any, Final
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import (
    AnswerRefused,
    NotPulsar,
    PulsarAdmin,
    shown,
)
from loadmanager.core.bundle_traffic import topics_in
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, parse_namespace
from loadmanager.core.load import BrokerUrls
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.wire.policies import decode_isolation

_ABSENT: Final = frozenset({HTTPStatus.NOT_FOUND})
# In the order of the fields of `BrokerUrls`.
_KEYS: Final = ("httpUrl", "httpUrlTls", "brokerUrl", "brokerUrlTls")


async def read_lookup(admin: PulsarAdmin, url: str, topic: TopicName) -> BrokerUrls:
    """Return the URLs of the broker that serves a topic; Pulsar places it if none does.

    Raises `PulsarAdminError`: as `PulsarAdmin.json`; `AnswerRefused` with 404 if the namespace does
    not exist, or the topic neither exists nor may be created.
    """
    local = quote(topic.local, safe="")
    where = f"{url}/lookup/v2/topic/{topic.domain}/{topic.namespace}/{local}"
    answer = await admin.json(where)
    found = answer if isinstance(answer, dict) else {}
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
    """Return the number of partitions of a topic, 0 if it is not partitioned or does not exist.

    Raises as `PulsarAdmin.json`, as all functions below.
    """
    local = quote(topic.local, safe="")
    where = f"{url}/admin/v2/{topic.domain}/{topic.namespace}/{local}/partitions"
    answer = await admin.json(where, absent=_ABSENT, instead={"partitions": 0})
    count = answer.get("partitions") if isinstance(answer, dict) else None
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        raise NotPulsar(f"{where}: answered {_shown(answer)}; expected a number of partitions")
    return count


def _shown(answer: Any) -> str:
    return shown(json.dumps(answer))


async def read_boundaries(admin: PulsarAdmin, url: str, namespace: Namespace) -> Boundaries | None:
    """Return None if the namespace does not exist."""
    where = f"{url}/admin/v2/namespaces/{namespace}/bundles"
    try:
        answer = await admin.json(where)
    except AnswerRefused as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return None
        raise
    bounds = answer.get("boundaries") if isinstance(answer, dict) else None
    try:
        return Boundaries(namespace, tuple(int(str(one), 16) for one in bounds or ()))
    except (ValueError, InvalidName):
        raise NotPulsar(
            f"{where}: answered {_shown(answer)}; expected the boundaries of bundles"
        ) from None


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
    answer = await admin.json(where, absent=absent, instead=[])
    if not isinstance(answer, list) or not all(isinstance(one, str) for one in answer):
        raise NotPulsar(f"{where}: answered {answer!r:.60}; expected a list of names")
    return answer


async def read_topics(admin: PulsarAdmin, url: str, bundle: BundleId) -> tuple[TopicName, ...]:
    namespace, _, bounds = bundle.rpartition("/")
    # Older versions ignore the bundle, and list all of the namespace.
    answer = await admin.json(f"{url}/admin/v2/persistent/{namespace}?bundle={bounds}")
    names = map(str, answer if isinstance(answer, list) else ())
    return tuple(topic for _, topic, _ in topics_in(bundle, names))


NONE_FOR_S: Final = 60.0
"""Time until isolation policies are read again from a cluster that had none.

Without policies, brokers log an error with a stack trace at each such request.
"""

_NONE: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.NO_CONTENT})


async def read_isolation(admin: PulsarAdmin, url: str, cluster: str) -> Policies:
    _, policies = await read_isolation_text(admin, url, cluster)
    return policies


async def read_isolation_text(admin: PulsarAdmin, url: str, cluster: str) -> tuple[str, Policies]:
    """Return isolation policies as Pulsar's text, and parsed; raises as `PulsarAdmin.json`."""
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/namespaceIsolationPolicies"
    if monotonic() < admin.missing_until_s.get(where, 0.0):
        return "{}", NO_POLICIES
    try:
        answer = await admin.text(where)
    except AnswerRefused as error:
        if error.status in _NONE:
            admin.missing_until_s[where] = monotonic() + NONE_FOR_S
            return "{}", NO_POLICIES
        raise
    try:
        return answer, Policies(isolation=decode_isolation(where, answer.encode()))
    except MalformedContent as error:
        raise NotPulsar(str(error)) from None


async def read_failure_domains(
    admin: PulsarAdmin, url: str, cluster: str
) -> Mapping[str, Mapping[str, Any]]:
    """Return failure domains by name, in Pulsar's form; raises as `PulsarAdmin.json`."""
    where = f"{url}/admin/v2/clusters/{quote(cluster, safe='')}/failureDomains"
    found = await admin.json(where, absent=_NONE, instead={})
    if not isinstance(found, dict) or not all(isinstance(one, dict) for one in found.values()):
        raise NotPulsar(f"{where}: expected failure domains by name, each a JSON object")
    return found


async def read_anti_affinity_group(admin: PulsarAdmin, url: str, namespace: Namespace) -> str:
    """Return the anti-affinity group of a namespace, "" for none; raises as `PulsarAdmin.text`."""
    try:
        answer = await admin.text(f"{url}/admin/v2/namespaces/{namespace}/antiAffinity")
    except AnswerRefused as error:
        if error.status in _NONE:
            return ""
        raise
    return answer.strip().strip('"')
