"""Resource quotas, which Pulsar's tools set and ask for."""

from typing import Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field

from loadmanager.adapters.http.admin.names import namespace_in
from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.core.bounds import RATE
from loadmanager.ports import QuotaService

_TAG: Final = "resource quotas"
_PATH: Final = "/admin/v2/resource-quotas"
_BUNDLE: Final = f"{_PATH}/{{tenant}}/{{namespace}}/{{bundle}}"
_UNKNOWN: Final = Reply(404, "There is no such namespace, or it has no such bundle.")
_MOST: Final = RATE.most


class Quota(BaseModel):
    """What a bundle is expected to need; kept for tools, and nothing is decided by it."""

    model_config = ConfigDict(populate_by_name=True)

    msg_rate_in: float = Field(alias="msgRateIn", ge=0, le=_MOST)
    msg_rate_out: float = Field(alias="msgRateOut", ge=0, le=_MOST)
    bandwidth_in: float = Field(alias="bandwidthIn", ge=0, le=_MOST, description="Bytes a second.")
    bandwidth_out: float = Field(
        alias="bandwidthOut", ge=0, le=_MOST, description="Bytes a second."
    )
    memory: float = Field(ge=0, le=_MOST, description="In MB.")
    dynamic: bool = Field(default=True)


class Quotas(Resource):
    """Answers under ``/admin/v2/resource-quotas``."""

    def __init__(self, service: QuotaService) -> None:
        self._service = service

    @operation(
        "GET",
        _PATH,
        tag=_TAG,
        summary="The quota of bundles without one of their own.",
        role=Role.READ,
        replies=(Reply(200, "It.", Quota),),
    )
    async def default(self, _call: Call) -> web.StreamResponse:
        """Tell the default quota."""
        return json_reply(dict(await self._service.default()))

    @operation(
        "POST",
        _PATH,
        tag=_TAG,
        summary="Set the quota of bundles without one of their own.",
        role=Role.ADMIN,
        replies=(Reply(204, "It is set."), Reply(409, "Others changed it meanwhile.")),
        body=Quota,
    )
    async def put_default(self, call: Call) -> web.StreamResponse:
        """Set the default quota."""
        quota: Quota = call.body
        await self._service.put_default(quota.model_dump(by_alias=True))
        return empty_reply(204)

    @operation(
        "GET",
        _BUNDLE,
        tag=_TAG,
        summary="The quota of a bundle: its own, or the default.",
        role=Role.READ,
        replies=(Reply(200, "It.", Quota), _UNKNOWN),
    )
    async def of_bundle(self, call: Call) -> web.StreamResponse:
        """Tell a bundle's quota."""
        found = await self._service.of_bundle(namespace_in(call), call.path["bundle"])
        return json_reply(dict(found))

    @operation(
        "POST",
        _BUNDLE,
        tag=_TAG,
        summary="Set the quota of a bundle.",
        role=Role.ADMIN,
        replies=(Reply(204, "It is set."), _UNKNOWN, Reply(409, "Others changed it meanwhile.")),
        body=Quota,
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Set a bundle's quota."""
        quota: Quota = call.body
        bundle = call.path["bundle"]
        await self._service.put(namespace_in(call), bundle, quota.model_dump(by_alias=True))
        return empty_reply(204)

    @operation(
        "DELETE",
        _BUNDLE,
        tag=_TAG,
        summary="Let a bundle have the default quota again.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It has none of its own (any more)."),
            _UNKNOWN,
            Reply(409, "Others changed it meanwhile."),
        ),
    )
    async def reset(self, call: Call) -> web.StreamResponse:
        """Take a bundle's quota away."""
        await self._service.reset(namespace_in(call), call.path["bundle"])
        return empty_reply(204)
