"""What a broker's host uses, from the load report that the modular load manager makes."""

import math
from collections.abc import Mapping
from typing import Any, Final

from loadmanager.adapters.pulsar_admin.client import PulsarAdmin
from loadmanager.adapters.pulsar_admin.errors import NotPulsar
from loadmanager.core.load import ResourceUsage

_RESOURCES: Final[Mapping[str, str]] = {
    "cpu": "cpu",
    "memory": "memory",
    "directMemory": "direct_memory",
    "bandwidthIn": "bandwidth_in",
    "bandwidthOut": "bandwidth_out",
}
_MOST: Final = 1e12


async def read_host_usage(admin: PulsarAdmin, url: str) -> Mapping[str, ResourceUsage]:
    """Return usage and limit of each resource whose limit is known, by the core's names.

    Raises:
        PulsarAdminError: the broker has no such report, or does not give it.
    """
    where = f"{url}/admin/v2/broker-stats/load-report"
    told = await admin.json(where)
    if not isinstance(told, dict):
        raise NotPulsar(f"{where}: expected the load report of a Pulsar broker")
    found = {ours: _usage(told.get(name)) for name, ours in _RESOURCES.items()}
    return {name: usage for name, usage in found.items() if usage is not None}


def _usage(told: Any) -> ResourceUsage | None:
    """Return one resource; None where the host does not report its limit, which is 0 or -1 then."""
    if not isinstance(told, dict):
        return None
    usage, limit = _number(told.get("usage")), _number(told.get("limit"))
    return ResourceUsage(usage, limit) if usage is not None and limit else None


def _number(told: Any) -> float | None:
    """Return a number from 0 to more than any host has, None for anything else."""
    if isinstance(told, bool) or not isinstance(told, int | float) or not math.isfinite(told):
        return None
    return float(told) if 0 <= told <= _MOST else None
