"""Resource quotas: what Pulsar's tools set and ask for; nothing here decides by them."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from loadmanager.common.bundle_names import boundaries_of, bundle_in
from loadmanager.common.context import Context
from loadmanager.common.documents import Documents, told
from loadmanager.core import znodes
from loadmanager.core.ids import BundleId, Namespace
from loadmanager.core.wire.fields import parse_object, to_json

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
    """The application's side of `QuotaService`."""

    def __init__(self, context: Context) -> None:
        self._cluster_state = context.cluster_state
        self._documents = Documents(context.coordination)

    async def default(self) -> Mapping[str, Any]:
        """Return the quota of bundles without one of their own; see `QuotaService`."""
        return await self._stored(None) or DEFAULT_QUOTA

    async def put_default(self, quota: Mapping[str, Any]) -> None:
        """Set the quota of bundles without one of their own; see `QuotaService`."""
        await self._documents.change(znodes.quota(None), lambda _: to_json(quota))

    async def of_bundle(self, namespace: Namespace, range_text: str) -> Mapping[str, Any]:
        """Return the quota of a bundle; see `QuotaService`."""
        bundle = await self._bundle(namespace, range_text)
        return await self._stored(bundle) or await self.default()

    async def put(self, namespace: Namespace, range_text: str, quota: Mapping[str, Any]) -> None:
        """Set the quota of a bundle; see `QuotaService`."""
        path = znodes.quota(await self._bundle(namespace, range_text))
        await self._documents.change(path, lambda _: to_json(quota))

    async def reset(self, namespace: Namespace, range_text: str) -> None:
        """Let a bundle have the default quota again; see `QuotaService`."""
        path = znodes.quota(await self._bundle(namespace, range_text))
        if await self._documents.read(path) is not None:
            await self._documents.change(path, lambda _: None)

    async def _bundle(self, namespace: Namespace, range_text: str) -> BundleId:
        return bundle_in(await boundaries_of(self._cluster_state, namespace), range_text)

    async def _stored(self, bundle: BundleId | None) -> Mapping[str, Any] | None:
        path = znodes.quota(bundle)
        data = await self._documents.read(path)
        with told(path, "read"):
            return parse_object(path, data) if data else None
