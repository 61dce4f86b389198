import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from loadmanager.adapters.http.assign_client import HttpAssignClient, refusal_text
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.fields import Fields, parse_fields
from loadmanager.core.ids import BundleId, Namespace, TopicName, parse_bundle, parse_full_topic
from loadmanager.core.rates import Rates
from loadmanager.core.wire.shared_forms import rates_from, rates_to_json
from loadmanager.ports.lookup import Unavailable

TOPICS_PATH: Final = "/admin/v2/broker-stats/topics"
# Some 400,000 topics of one broker.
_MOST_BYTES: Final = 64 * 1024 * 1024


class HttpTopicsClient:
    def __init__(self, line: HttpAssignClient) -> None:
        self._line = line

    async def topics(
        self, sidecar_url: str, namespace: Namespace
    ) -> Mapping[BundleId, Mapping[TopicName, Rates]]:
        """Return `Topics.own` of another sidecar. Raises `Unavailable`."""
        path = f"{TOPICS_PATH}?namespace={quote(namespace, safe='')}"
        url = sidecar_url.rstrip("/") + path
        answer = await self._line.ask("GET", sidecar_url, path, most_bytes=_MOST_BYTES)
        if answer.status != 200:  # noqa: PLR2004 - HTTP
            raise Unavailable(refusal_text(url, answer))
        try:
            return topics_from(parse_fields(url, answer.text.encode()))
        except (MalformedContent, InvalidName, json.JSONDecodeError) as error:
            raise Unavailable(f"{url}: {error}") from error


def topics_to_json(
    topics: Mapping[BundleId, Mapping[TopicName, Rates]],
) -> dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]]:
    """Return topics in Pulsar's form: namespace, range, domain, name, rates."""
    document: dict[str, dict[str, dict[str, dict[str, dict[str, float]]]]] = {}
    for bundle, inner in sorted(topics.items()):
        namespace, _, hash_range = bundle.rpartition("/")
        domains = document.setdefault(namespace, {}).setdefault(hash_range, {})
        for topic, traffic in sorted(inner.items(), key=lambda one: str(one[0])):
            domains.setdefault(topic.domain, {})[str(topic)] = rates_to_json(traffic)
    return document


def topics_from(document: Fields) -> Mapping[BundleId, Mapping[TopicName, Rates]]:
    """Raises `MalformedContent` or `InvalidName`: the document is not in that form."""
    found: dict[BundleId, dict[TopicName, Rates]] = {}
    for namespace in document.names():
        ranges = document.inner(namespace)
        for hash_range in ranges.names():
            domains = ranges.inner(hash_range)
            found[parse_bundle(f"{namespace}/{hash_range}")] = {
                parse_full_topic(name): rates_from(domains.inner(domain).inner(name))
                for domain in domains.names()
                for name in domains.inner(domain).names()
            }
    return found
