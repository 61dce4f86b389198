"""Pulsar's dynamic settings: they stand in its metadata and override every broker's file."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

from loadmanager.adapters.pulsar_admin.client import PulsarAdmin
from loadmanager.adapters.pulsar_admin.errors import NotPulsar

CONFIGURATION: Final = "/admin/v2/brokers/configuration"


async def read_dynamic(admin: PulsarAdmin, url: str) -> Mapping[str, str]:
    """Return the settings that are overridden; raises as `PulsarAdmin.json`."""
    where = f"{url}{CONFIGURATION}/values"
    found = await admin.json(where)
    if not isinstance(found, dict):
        raise NotPulsar(f"{where}: expected the dynamic settings of a Pulsar cluster")
    return {key: value for key, value in found.items() if isinstance(value, str)}


async def write_dynamic(admin: PulsarAdmin, url: str, key: str, value: str | None) -> None:
    """Override a setting on all brokers, None ends that; raises as `PulsarAdmin.change`."""
    where = f"{url}{CONFIGURATION}/{quote(key, safe='')}"
    if value is None:
        await admin.change("DELETE", where)
    else:
        await admin.change("POST", f"{where}/{quote(value, safe='')}")
