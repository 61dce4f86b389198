from collections.abc import Collection
from contextlib import suppress
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import AnswerRefused, NotPulsar, PulsarAdmin
from loadmanager.core.bundle_traffic import topics_in
from loadmanager.core.bundles import Boundaries
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, Namespace, TopicName, parse_namespace
from loadmanager.core.load import BrokerUrls

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
    """Return the URLs of the broker at ``url``, from a lookup of its heartbeat topic.

    Raises as `read_lookup`.
    """
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
        raise NotPulsar(f"{where}: answered {answer!r:.60}; expected a number of partitions")
    return count


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
            f"{where}: answered {answer!r:.60}; expected the boundaries of bundles"
        ) from None


async def read_namespaces(admin: PulsarAdmin, url: str) -> frozenset[Namespace]:
    found: set[Namespace] = set()
    for tenant in await _names(admin, f"{url}/admin/v2/tenants"):
        where = f"{url}/admin/v2/namespaces/{quote(tenant, safe='')}"
        # A tenant that was deleted in the meantime has none.
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
