from collections.abc import Mapping, Sequence
from typing import Final

from loadmanager.adapters.http.operations import Reply, Resource, operation
from loadmanager.common.runtime_settings import DynamicSettings

_PATH: Final = "/admin/v2/brokers/configuration"
_TEXTS: Final = dict[str, str]


class Configuration(Resource, tag="configuration"):
    """Answers under ``/admin/v2/brokers/configuration``.

    ``internal`` has the addresses of ZooKeeper for `internal-configuration`.
    """

    def __init__(self, service: DynamicSettings, internal: Mapping[str, str]) -> None:
        self._service = service
        self._internal = dict(internal)

    @operation(
        "GET",
        _PATH,
        Reply(200, "The load manager's names of the settings, then Pulsar's.", list[str]),
    )
    async def names(self) -> Sequence[str]:
        """List the settings that can be changed while the sidecars run."""
        return self._service.names()

    @operation("GET", f"{_PATH}/values", Reply(200, "The values as strings, by name.", _TEXTS))
    async def values(self) -> Mapping[str, str]:
        """Get the settings that are set for the whole cluster."""
        return await self._service.values()

    @operation(
        "GET",
        f"{_PATH}/runtime",
        Reply(200, "The values as strings, by `section.key`; secrets are hidden.", _TEXTS),
    )
    async def runtime(self) -> Mapping[str, str]:
        """Get the configuration in force: this sidecar's own, with what is set for the cluster."""
        return await self._service.effective()

    @operation(
        "GET",
        "/admin/v2/brokers/internal-configuration",
        Reply(200, "The addresses, by Pulsar's names of the settings.", _TEXTS),
    )
    async def internal(self) -> Mapping[str, str]:
        """Get the addresses of the cluster's metadata store."""
        return self._internal

    @operation(
        "POST",
        f"{_PATH}/{{key}}/{{value}}",
        Reply(204, "The value is set; every sidecar applies it within seconds."),
        Reply(409, "Other clients kept changing the settings."),
        Reply(
            412, "The setting does not exist or is not dynamic, or the value is not valid for it."
        ),
    )
    async def put(self, key: str, value: str) -> None:
        """Set a value for the whole cluster.

        The value is checked against this sidecar's configuration and all values that are set.
        """
        await self._service.put(key, value)

    @operation(
        "DELETE",
        f"{_PATH}/{{key}}",
        Reply(204, "The setting has no value for the whole cluster now."),
        Reply(409, "Other clients kept changing the settings."),
        Reply(412, "The setting does not exist or is not dynamic."),
    )
    async def remove(self, key: str) -> None:
        """Remove a value; every sidecar then uses that of its own configuration."""
        await self._service.remove(key)
