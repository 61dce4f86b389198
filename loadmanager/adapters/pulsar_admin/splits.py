"""Splits of bundles of a Pulsar cluster in two, at a given position.

Pulsar's own split by traffic answers 500 in several versions; splits at given positions exist
since 3.0. Topics stay loaded at their broker, so clients are not interrupted.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from loadmanager.adapters.pulsar_admin.client import (
    AnswerRefused,
    PulsarAdmin,
    PulsarAdminError,
    RightMissing,
)
from loadmanager.adapters.pulsar_admin.move_order import Outcome
from loadmanager.adapters.pulsar_admin.ownership import read_owned
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.splitting import parts_at

LOOK_S: Final = 5.0
"""Time after an order within which the broker is expected to serve the parts."""

_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class BundleSplitter:
    """Splits bundles of one broker, at ``url``."""

    admin: PulsarAdmin
    url: str
    cluster: str
    broker: BrokerId

    async def split(
        self, bundle: BundleId, cut: int, ordered: Callable[[], None] = lambda: None
    ) -> Outcome:
        """Split a bundle; ``cut`` is the first position of the second part.

        Calls ``ordered`` before the order.

        Raises:
            RightMissing: 401 or 403, which any further split would get, too.
        """
        path = f"{self.url}/admin/v2/namespaces/{bundle}/split?unload=false"
        try:
            if bundle not in await self._owned():
                why = f"{self.broker} does not serve it any more"
                return Outcome(state="superseded", reason=why)
        except RightMissing:
            raise
        except PulsarAdminError as error:
            return Outcome(state="failed", reason=str(error))
        ordered()
        try:
            await self.admin.change(
                "PUT", f"{path}&splitAlgorithmName=specified_positions_divide", f"[{cut}]"
            )
        except RightMissing:
            raise
        except AnswerRefused as error:
            return Outcome(state="failed", reason=str(error), attempts=1, owner=self.broker)
        except PulsarAdminError as error:
            return await self._looked(bundle, cut, str(error))
        return await self._looked(bundle, cut, f"{self.broker} does not serve both parts")

    async def _looked(self, bundle: BundleId, cut: int, otherwise: str) -> Outcome:
        parts = set(parts_at(bundle, cut))
        until_s = monotonic() + LOOK_S
        while monotonic() < until_s:
            try:
                if parts <= await self._owned():
                    return Outcome(state="serving", attempts=1, owner=self.broker)
            except RightMissing:
                raise
            except PulsarAdminError as error:
                otherwise = str(error)
            await asyncio.sleep(_PAUSE_S)
        return Outcome(state="timed_out", reason=otherwise, attempts=1)

    async def _owned(self) -> set[BundleId]:
        owned, _ = await read_owned(self.admin, self.url, self.cluster, self.broker)
        return set(owned)
