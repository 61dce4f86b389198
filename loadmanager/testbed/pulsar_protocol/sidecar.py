"""The broker's requests to its sidecar: a topic's owner, and its number of partitions."""

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
    """Where a topic's clients belong, and the bundle it is in if the sidecar named it."""

    broker_url: str
    bundle: BundleId | None


class SidecarClient:
    """Asks a sidecar over HTTP, as any client does.

    Args:
        url: where the sidecar listens, without a path.
        token: a bearer token with the role for lookups; "" where none is wanted.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self._url = url.rstrip("/")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT)

    async def owner(self, topic: TopicName) -> TopicOwner | None:
        """Return the owner of ``topic``; None if the sidecar gives no usable answer."""
        found = await self._get(f"/lookup/v2/topic/{_path(topic)}")
        if found is None:
            return None
        fields, bundle = found
        broker_url = fields.get("brokerUrl")
        if not isinstance(broker_url, str) or not broker_url:
            return None
        return TopicOwner(broker_url, _bundle(bundle))

    async def partitions(self, topic: TopicName) -> int | None:
        """Return the partitions of ``topic``, 0 if it has none; None without an answer."""
        found = await self._get(f"/admin/v2/{_path(topic)}/partitions")
        count = None if found is None else found[0].get("partitions")
        return count if type(count) is int and count >= 0 else None

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def _get(self, path: str) -> tuple[dict[str, Any], str] | None:
        """Return an answer's fields and the bundle it names."""
        try:
            async with self._http.get(self._url + path) as answer:
                if answer.status != HTTPStatus.OK:
                    return None
                fields = await answer.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return None
        bundle = answer.headers.get(_BUNDLE_HEADER, "")
        return (fields, bundle) if isinstance(fields, dict) else None


def _path(topic: TopicName) -> str:
    return f"{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"


def _bundle(text: str) -> BundleId | None:
    try:
        return parse_bundle(text)
    except InvalidName:
        return None
