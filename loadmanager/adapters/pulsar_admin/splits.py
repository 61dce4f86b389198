"""Cutting one bundle of a Pulsar cluster in two, at a position of ours.

Pulsar's own cut by traffic answers 500 in several versions; the cut at given positions is
there since 3.0. Topics stay loaded where they are, so clients do not notice.
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
"""How long after an order the parts are looked for."""

_PAUSE_S: Final = 0.2


@dataclass(frozen=True, slots=True)
class BundleSplitter:
    """Splits bundles that a broker serves; ``url`` is that broker's."""

    admin: PulsarAdmin
    url: str
    cluster: str
    broker: BrokerId

    async def split(
        self, bundle: BundleId, cut: int, ordered: Callable[[], None] = lambda: None
    ) -> Outcome:
        """Cut a bundle; ``cut`` is the first position of the second part.

        Calls ``ordered`` before the order.

        Raises:
            RightMissing: 401 or 403: no further split will do better.
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
