"""Settings changed for the whole cluster while it runs, and what this sidecar works with."""

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from loadmanager.adapters.http.operations import Call, Reply, Resource, operation
from loadmanager.adapters.http.replies import empty_reply, json_reply
from loadmanager.adapters.http.routes import Role
from loadmanager.ports import DynamicService

_TAG: Final = "configuration"
_PATH: Final = "/admin/v2/brokers/configuration"
_TEXTS: Final = dict[str, str]


class Configuration(Resource):
    """Answers under ``/admin/v2/brokers/configuration``.

    ``internal`` is what `internal-configuration` tells of how ZooKeeper is reached.
    """

    def __init__(self, service: DynamicService, internal: Mapping[str, str]) -> None:
        self._service = service
        self._internal = dict(internal)

    @operation(
        "GET",
        _PATH,
        tag=_TAG,
        summary="The names of all settings that can be changed while the sidecars run.",
        role=Role.READ,
        replies=(Reply(200, "Our names, then Pulsar's.", list[str]),),
    )
    async def names(self, _call: Call) -> web.StreamResponse:
        """Tell what can be set."""
        return json_reply(list(self._service.names()))

    @operation(
        "GET",
        f"{_PATH}/values",
        tag=_TAG,
        summary="What is set for the whole cluster now.",
        role=Role.READ,
        replies=(Reply(200, "Values as texts, by name.", _TEXTS),),
    )
    async def values(self, _call: Call) -> web.StreamResponse:
        """Tell what is set."""
        return json_reply(dict(await self._service.values()))

    @operation(
        "GET",
        f"{_PATH}/runtime",
        tag=_TAG,
        summary="What this sidecar works with: its own configuration and what is set.",
        role=Role.READ,
        replies=(Reply(200, "Values as texts, by `section.key`; secrets hidden.", _TEXTS),),
    )
    async def runtime(self, _call: Call) -> web.StreamResponse:
        """Tell the whole configuration in force."""
        return json_reply(dict(await self._service.effective()))

    @operation(
        "GET",
        "/admin/v2/brokers/internal-configuration",
        tag=_TAG,
        summary="Where this sidecar's cluster keeps its metadata.",
        role=Role.READ,
        replies=(Reply(200, "Addresses.", _TEXTS),),
    )
    async def internal(self, _call: Call) -> web.StreamResponse:
        """Tell how ZooKeeper is reached."""
        return json_reply(self._internal)

    @operation(
        "POST",
        f"{_PATH}/{{key}}/{{value}}",
        tag=_TAG,
        summary="Set a value for the whole cluster.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is set; every sidecar acts on it within seconds."),
            Reply(409, "Others changed the settings again and again meanwhile."),
            Reply(412, "The name cannot be set, or the value is none for it."),
        ),
    )
    async def put(self, call: Call) -> web.StreamResponse:
        """Set a value, checked against this sidecar's configuration and all that is set."""
        await self._service.put(call.path["key"], call.path["value"])
        return empty_reply(204)

    @operation(
        "DELETE",
        f"{_PATH}/{{key}}",
        tag=_TAG,
        summary="Let every sidecar use its own value again.",
        role=Role.ADMIN,
        replies=(
            Reply(204, "It is not set (any more)."),
            Reply(409, "Others changed the settings again and again meanwhile."),
            Reply(412, "The name cannot be set."),
        ),
    )
    async def remove(self, call: Call) -> web.StreamResponse:
        """Take a value back."""
        await self._service.remove(call.path["key"])
        return empty_reply(204)
