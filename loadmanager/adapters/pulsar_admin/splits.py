"""Splits of bundles of a Pulsar cluster in two, at a given position.

Pulsar's own split by traffic answers 500 in several versions; splits at given positions exist
since 3.0. Topics stay loaded at their broker, so clients are not interrupted.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from loadmanager.adapters.pulsar_admin.client import AnswerRefused, RequestFailed
from loadmanager.adapters.pulsar_admin.move_order import Outcome
from loadmanager.adapters.pulsar_admin.ownership import BrokerQueries
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.splitting.cutting import parts_at

LOOK_S: Final = 5.0
"""Time after an order within which the broker is expected to serve the parts."""

_PAUSE_S: Final = 0.2


async def split_bundle(
    brokers: BrokerQueries,
    broker: BrokerId,
    bundle: BundleId,
    cut: int,
    ordered: Callable[[], None] = lambda: None,
) -> Outcome:
    """Split a bundle at its broker; ``cut`` is the first position of the second part.

    Calls ``ordered`` before the order. Raises `RightMissing`: 401 or 403, which any further split
    would get, too.
    """
    try:
        if not await brokers.serves(broker, bundle):
            why = f"{broker} does not serve it any more"
            return Outcome(state="superseded", reason=why)
    except RequestFailed as error:
        return Outcome(state="failed", reason=str(error))
    ordered()
    why = f"{broker} does not serve both parts"
    url = f"{brokers.address(broker)}/admin/v2/namespaces/{bundle}/split?unload=false"
    try:
        await brokers.admin.change(
            "PUT", f"{url}&splitAlgorithmName=specified_positions_divide", f"[{cut}]"
        )
    except AnswerRefused as error:
        return Outcome(state="failed", reason=str(error), attempts=1, owner=broker)
    except RequestFailed as error:
        why = str(error)
    until_s = monotonic() + LOOK_S
    while monotonic() < until_s:
        try:
            if await brokers.serves(broker, *parts_at(bundle, cut)):
                return Outcome(state="serving", attempts=1, owner=broker)
        except RequestFailed as error:
            why = str(error)
        await asyncio.sleep(_PAUSE_S)
    return Outcome(state="timed_out", reason=why, attempts=1)
