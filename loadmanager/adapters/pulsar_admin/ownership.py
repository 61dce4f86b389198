import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import PulsarAdmin, RequestFailed
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, parse_bundle


async def read_owned(
    admin: PulsarAdmin, url: str, cluster: str, broker: BrokerId
) -> tuple[BundleId, ...]:
    """Return the bundles, without those of version 1; raises as `PulsarAdmin.json`."""
    path = f"/admin/v2/brokers/{quote(cluster, safe='')}/{broker}/ownedNamespaces"
    answer = await admin.json(f"{url}{path}")
    owned: list[BundleId] = []
    for name in answer if isinstance(answer, dict) else ():
        with suppress(InvalidName):
            owned.append(parse_bundle(name))
    return tuple(owned)


@dataclass(frozen=True, slots=True)
class BrokerQueries:
    admin: PulsarAdmin
    address: Callable[[BrokerId], str]
    cluster: str
    brokers: Callable[[], Collection[BrokerId]]

    async def serves(self, broker: BrokerId, *bundles: BundleId) -> bool:
        """Return whether a broker reports that it serves all of these; raises as `read_owned`."""
        owned = await read_owned(self.admin, self.address(broker), self.cluster, broker)
        return set(bundles) <= set(owned)

    async def surely_serves(self, broker: BrokerId, bundle: BundleId) -> bool:
        """Return as `serves`, but False for a broker that does not answer."""
        try:
            return await self.serves(broker, bundle)
        except RequestFailed:
            return False

    async def owner(self, bundle: BundleId, *, but: BrokerId | None = None) -> BrokerId | None:
        """Return a broker other than ``but`` that serves a bundle; raises as `surely_serves`."""
        asked = [broker for broker in self.brokers() if broker != but]
        serve = await asyncio.gather(*(self.surely_serves(one, bundle) for one in asked))
        return next((one for one, does in zip(asked, serve, strict=True) if does), None)

    async def why_not_ready(self, broker: BrokerId) -> str:
        """Return why a broker is not ready for bundles, "" if it is; raises as `surely_serves`."""
        try:
            ready = await self.admin.text(f"{self.address(broker)}/admin/v2/brokers/ready")
        except RequestFailed as error:
            return str(error)
        if ready.strip() != "ok":
            return f"{broker} says {ready[:60]!r} of itself; expected 'ok'"
        return ""
