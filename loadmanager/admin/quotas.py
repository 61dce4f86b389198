"""Resource quotas, which Pulsar's tools set and ask for."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import ConfigDict, Field

from loadmanager.adapters.http.operations import Document, Reply, Resource, operation
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

_PATH: Final = "/admin/v2/resource-quotas"
_BUNDLE: Final = f"{_PATH}/{{tenant}}/{{namespace}}/{{bundle}}"
_SET: Final = Reply(204, "The quota is set.")
_UNKNOWN: Final = Reply(404, "The namespace does not exist, or has no such bundle.")
_CHANGED: Final = Reply(409, "Another client changed it at the same time.")
_MOST: Final = RATE.most


class Quota(Document):
    """The expected use of a bundle, stored for Pulsar's tools and not used for decisions."""

    model_config = ConfigDict(populate_by_name=True)

    msg_rate_in: float = Field(alias="msgRateIn", ge=0, le=_MOST)
    msg_rate_out: float = Field(alias="msgRateOut", ge=0, le=_MOST)
    bandwidth_in: float = Field(alias="bandwidthIn", ge=0, le=_MOST)
    """The incoming traffic in bytes per second."""
    bandwidth_out: float = Field(alias="bandwidthOut", ge=0, le=_MOST)
    """The outgoing traffic in bytes per second."""
    memory: float = Field(ge=0, le=_MOST)
    """The memory in MB."""
    dynamic: bool = Field(default=True)


class Quotas(Resource, tag="resource quotas"):
    """Answers under ``/admin/v2/resource-quotas``, with quotas in Pulsar's form."""

    def __init__(self, context: Context) -> None:
        self._cluster_state = context.cluster_state
        self._documents = Documents(context.coordination)

    @operation("GET", _PATH, Reply(200, "The quota.", Quota))
    async def default(self) -> Mapping[str, Any]:
        """Get the quota of bundles without one of their own."""
        return await self._stored(None) or DEFAULT_QUOTA

    @operation("POST", _PATH, _SET, _CHANGED)
    async def put_default(self, body: Quota) -> None:
        """Set the quota of bundles without one of their own."""
        await self._put(None, body)

    @operation("GET", _BUNDLE, Reply(200, "The quota.", Quota), _UNKNOWN)
    async def of_bundle(self, namespace: Namespace, bundle: str) -> Mapping[str, Any]:
        """Get the quota of a bundle: its own, or the default."""
        found = await self._stored(await self._bundle(namespace, bundle))
        return found or await self.default()

    @operation("POST", _BUNDLE, _SET, _UNKNOWN, _CHANGED)
    async def put(self, namespace: Namespace, bundle: str, body: Quota) -> None:
        """Set the quota of a bundle."""
        await self._put(await self._bundle(namespace, bundle), body)

    @operation(
        "DELETE", _BUNDLE, Reply(204, "The bundle has the default quota."), _UNKNOWN, _CHANGED
    )
    async def reset(self, namespace: Namespace, bundle: str) -> None:
        """Remove the quota of a bundle, which then has the default."""
        path = znodes.quota(await self._bundle(namespace, bundle))
        if await self._documents.read(path) is not None:
            await self._documents.change(path, lambda _: None)

    async def _bundle(self, namespace: Namespace, range_text: str) -> BundleId:
        return bundle_in(await boundaries_of(self._cluster_state, namespace), range_text)

    async def _put(self, bundle: BundleId | None, quota: Quota) -> None:
        content = to_json(quota.model_dump(by_alias=True))
        await self._documents.change(znodes.quota(bundle), lambda _: content)

    async def _stored(self, bundle: BundleId | None) -> Mapping[str, Any] | None:
        path = znodes.quota(bundle)
        data = await self._documents.read(path)
        with as_unavailable(path, "read"):
            return parse_object(path, data) if data else None
