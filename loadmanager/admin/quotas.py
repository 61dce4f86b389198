"""Pulsar's resource quotas, by which no decision is made here."""

from typing import Final

from loadmanager.adapters.http.operations import Reply, Resource, operation
from loadmanager.adapters.http.replies import Refused

_PATH: Final = "/admin/v2/resource-quotas"
_BUNDLE: Final = f"{_PATH}/{{tenant}}/{{namespace}}/{{bundle}}"
_GONE: Final = Reply(410, "There are no resource quotas.")


class Quotas(Resource, tag="resource quotas"):
    @operation("GET", _PATH, _GONE)
    @operation("POST", _PATH, _GONE)
    @operation("GET", _BUNDLE, _GONE)
    @operation("POST", _BUNDLE, _GONE)
    @operation("DELETE", _BUNDLE, _GONE)
    async def refuse(self) -> None:
        """Refuse: bundles are placed by what brokers report of them, not by quotas."""
        reason = "there are no resource quotas: bundles are placed by what brokers report of them"
        raise Refused(410, reason)
