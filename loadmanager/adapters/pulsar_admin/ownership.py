"""Which bundles a broker serves, as it says itself at this moment."""

from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import PulsarAdmin
from loadmanager.core.errors import InvalidName
from loadmanager.core.ids import BrokerId, BundleId, parse_bundle


async def read_owned(
    admin: PulsarAdmin, url: str, cluster: str, broker: BrokerId
) -> tuple[tuple[BundleId, ...], tuple[str, ...]]:
    """Return the bundles of the broker at ``url``, and names that are no bundle of version 2.

    Raises:
        PulsarAdminError: as `PulsarAdmin.json`.
    """
    path = f"/admin/v2/brokers/{quote(cluster, safe='')}/{broker}/ownedNamespaces"
    told = await admin.json(f"{url}{path}")
    owned: list[BundleId] = []
    foreign: list[str] = []
    for name in told if isinstance(told, dict) else ():
        try:
            owned.append(parse_bundle(name))
        except InvalidName:
            foreign.append(name)
    return tuple(owned), tuple(foreign)
