"""Resource quotas, which Pulsar's tools set and ask for."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from aiohttp import web
from pydantic import ConfigDict, Field

from loadmanager.adapters.http.operations import (
    Call,
    Document,
    Reply,
    Resource,
    namespace_in,
    operation,
)
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.common.bundle_names import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, as_unavailable
from loadmanager.core import znodes
from loadmanager.core.bounds import RATE
from loadmanager.core.fields import parse_object, to_json
from loadmanager.core.ids import BundleId, Namespace

DEFAULT_QUOTA: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "msgRateIn": 40.0,
        "msgRateOut": 120.0,
        "bandwidthIn": 100_000.0,
        "bandwidthOut": 300_000.0,
        "memory": 80.0,
        "dynamic": True,
    }
)
"""Pulsar's own, where none is set: rates a second, bytes a second, and memory in MB."""


class QuotaRequests:
    """Resource quotas in Pulsar's form. Those of bundles raise as `bundle_in`."""

    def __init__(self, context: Context) -> None:
        self._cluster_state = context.cluster_state
        self._documents = Documents(context.coordination)

    async def default(self) -> Mapping[str, Any]:
        """Return the quota of bundles without one of their own."""
        return await self._stored(None) or DEFAULT_QUOTA

    async def put_default(self, quota: Mapping[str, Any]) -> None:
        """Set it."""
        await self._documents.change(znodes.quota(None), lambda _: to_json(quota))

    async def of_bundle(self, namespace: Namespace, range_text: str) -> Mapping[str, Any]:
        """Return the quota of a bundle, its own or the default."""
        bundle = await self._bundle(namespace, range_text)
        return await self._stored(bundle) or await self.default()

    async def put(self, namespace: Namespace, range_text: str, quota: Mapping[str, Any]) -> None:
        """Set the quota of a bundle."""
        path = znodes.quota(await self._bundle(namespace, range_text))
        await self._documents.change(path, lambda _: to_json(quota))

    async def reset(self, namespace: Namespace, range_text: str) -> None:
        """Let a bundle have the default quota again."""
        path = znodes.quota(await self._bundle(namespace, range_text))
        if await self._documents.read(path) is not None:
            await self._documents.change(path, lambda _: None)

    async def _bundle(self, namespace: Namespace, range_text: str) -> BundleId:
        return bundle_in(await boundaries_of(self._cluster_state, namespace), range_text)

    async def _stored(self, bundle: BundleId | None) -> Mapping[str, Any] | None:
        path = znodes.quota(bundle)
        data = await self._documents.read(path)
        with as_unavailable(path, "read"):
            return parse_object(path, data) if data else None


_PATH: Final = "/admin/v2/resource-quotas"
_BUNDLE: Final = f"{_PATH}/{{tenant}}/{{namespace}}/{{bundle}}"
_UNKNOWN: Final = Reply(404, "The namespace does not exist, or has no such bundle.")
_MOST: Final = RATE.most


class Quota(Document):
    """The expected use of a bundle; kept for tools, and not used for decisions."""

    model_config = ConfigDict(populate_by_name=True)

    msg_rate_in: float = Field(alias="msgRateIn", ge=0, le=_MOST)
    msg_rate_out: float = Field(alias="msgRateOut", ge=0, le=_MOST)
    bandwidth_in: float = Field(alias="bandwidthIn", ge=0, le=_MOST)
    """Bytes a second."""
    bandwidth_out: float = Field(alias="bandwidthOut", ge=0, le=_MOST)
    """Bytes a second."""
    memory: float = Field(ge=0, le=_MOST)
    """In MB."""
    dynamic: bool = Field(default=True)


class Quotas(Resource, tag="resource quotas"):
    """Answers under ``/admin/v2/resource-quotas``."""

    def __init__(self, service: QuotaRequests) -> None:
        self._service = service

    @operation("GET", _PATH, Reply(200, "The quota.", Quota))
    async def default(self, _call: Call) -> web.StreamResponse:
        """Get the quota of bundles without one of their own."""
        return json_reply(dict(await self._service.default()))

    @operation(
        "POST",
        _PATH,
        Reply(204, "The quota is set."),
        Reply(409, "Another client changed it at the same time."),
        body=Quota,
    )
    async def put_default(self, call: Call) -> web.StreamResponse:
        """Set the quota of bundles without one of their own."""
        quota: Quota = call.body
        await self._service.put_default(quota.model_dump(by_alias=True))
        return empty_reply(204)

    @operation("GET", _BUNDLE, Reply(200, "The quota.", Quota), _UNKNOWN)
    async def of_bundle(self, call: Call) -> web.StreamResponse:
        """Get the quota of a bundle: its own, or the default."""
        found = await self._service.of_bundle(namespace_in(call), call.path["bundle"])
        return json_reply(dict(found))

    @operation(
        "POST",
        _BUNDLE,
        Reply(204, "The quota is set."),
        _UNKNOWN,
        Reply(409, "Another client changed it at the same time."),
        body=Quota,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Set the quota of a bundle."""
        quota: Quota = call.body
        bundle = call.path["bundle"]
        await self._service.put(namespace_in(call), bundle, quota.model_dump(by_alias=True))
        return empty_reply(204)

    @operation(
        "DELETE",
        _BUNDLE,
        Reply(204, "The bundle has the default quota."),
        _UNKNOWN,
        Reply(409, "Another client changed it at the same time."),
    )
    async def reset(self, call: Call) -> web.StreamResponse:
        """Remove the quota of a bundle, which then has the default."""
        await self._service.reset(namespace_in(call), call.path["bundle"])
        return empty_reply(204)
