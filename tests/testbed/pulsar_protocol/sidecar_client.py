"""Requests of the broker to its sidecar: the owner of a topic, and its number of partitions."""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final
from urllib.parse import quote

import aiohttp

from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BundleId, TopicName, parse_bundle

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)
_BUNDLE_HEADER: Final = "X-Loadmanager-Bundle"


@dataclass(frozen=True, slots=True)
class TopicOwner:
    """The owner of a topic, and the bundle of the topic if the sidecar names it."""

    broker_url: str
    bundle: BundleId | None


class SidecarClient:
    """Asks a sidecar over HTTP, as any client does.

    Args:
        url: the HTTP address of the sidecar, without a path.
        token: a bearer token with the role for lookups; "" for none.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT)

    async def owner(self, topic: TopicName) -> TopicOwner | None:
        """Return the owner of ``topic``; None if the sidecar does not name one."""
        fields, bundle = await self._get(f"/lookup/v2/topic/{_path(topic)}")
        broker_url = fields.get("brokerUrl")
        if not isinstance(broker_url, str) or not broker_url:
            return None
        try:
            return TopicOwner(broker_url, parse_bundle(bundle))
        except InvalidName:
            return TopicOwner(broker_url, None)

    async def partitions(self, topic: TopicName) -> int | None:
        """Return the partitions of ``topic``, 0 if it has none; None without an answer."""
        fields, _ = await self._get(f"/admin/v2/{_path(topic)}/partitions")
        count = fields.get("partitions")
        return count if type(count) is int and count >= 0 else None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _get(self, path: str) -> tuple[dict[str, Any], str]:
        """Return the fields of an answer and the bundle in its header; none if it failed."""
        try:
            async with self._http.get(self._url + path) as answer:
                fields = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return {}, ""
        usable = answer.status == HTTPStatus.OK and isinstance(fields, dict)
        return (fields if usable else {}), answer.headers.get(_BUNDLE_HEADER, "")


def _path(topic: TopicName) -> str:
    return f"{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"
