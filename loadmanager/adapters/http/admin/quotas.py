"""Resource quotas, which Pulsar's tools set and ask for."""

from typing import Final

from aiohttp import web
from pydantic import ConfigDict, Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Document, Reply, Resource, operation
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.core.bounds import RATE
from loadmanager.ports import QuotaService

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

    def __init__(self, service: QuotaService) -> None:
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
