"""Comparing, round by round, what was ordered with what is: nothing is left behind.

Orders, boundaries, locks, lists and reports have one writer each and agree in the end;
what does not agree is mended here or told, within one round, so that a fault nobody
thought of shows in a log, a metric and the accounts, and not as a bundle that is served
nowhere.
"""

from collections.abc import Iterator

import structlog

from loadmanager.app.disagreements import Disagreement, Kind, tell
from loadmanager.app.hand_overs import HandOvers
from loadmanager.app.order_book import OrderBook
from loadmanager.app.parts import Parts
from loadmanager.app.recollection import Recollection
from loadmanager.core import znodes
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import (
    BundleId,
    Namespace,
    belongs_to_a_broker,
    namespace_of,
    parse_bundle,
    range_of,
)

log = structlog.get_logger()

_LOOK_AGAIN_S = 1.0


class Reconciler:
    """Looks once a round, for one term."""

    def __init__(self, parts: Parts, hand_overs: HandOvers, recollection: Recollection) -> None:
        self._parts = parts
        self._hand_overs = hand_overs
        self._book: OrderBook = hand_overs.book
        self._recollection = recollection
        self._reported: set[BundleId] = set()

    async def look(self) -> None:
        """Mend or tell what does not agree.

        Raises:
            CoordinationError: it cannot be read, or the orders not be written, now.
        """
        found = [
            Disagreement(Kind.ORDERS_CHANGED, broker, "written by another hand", mended=True)
            for broker in await self._book.mend_changed()
        ]
        stuck = await self._hand_overs.repeat_lost()
        found += [
            Disagreement(Kind.STUCK_HAND_OVER, bundle, f"awaited at {broker}", mended=False)
            for bundle, broker in stuck.items()
        ]
        found += await self._recall_what_is_no_bundle()
        found += [
            Disagreement(Kind.STRAY_LOCK, bundle, znodes.lock(bundle), mended=False)
            for bundle in sorted(await self._strays())
        ]
        found += self._served_unlocked()
        tell(found, self._parts.metrics, self._recollection)

    async def _recall_what_is_no_bundle(self) -> list[Disagreement]:
        """Recall bundles of deleted namespaces, and ranges that their namespace has not got."""
        found: list[Disagreement] = []
        namespaces = {namespace_of(bundle) for bundle in self._book.assigned}
        for namespace in sorted(namespaces):
            found += [one async for one in self._no_bundles_of(namespace)]
        if found:
            gone = [BundleId(one.subject) for one in found]
            await self._book.change(gone=gone)
        return found

    async def _no_bundles_of(self, namespace: Namespace) -> AsyncIterator[Disagreement]:
        picture = self._parts.picture
        try:
            boundaries = await picture.boundaries(namespace)
            if boundaries is None:
                # To recall a whole namespace, what one server has not heard of yet will
                # not do.
                await self._parts.coordination.sync(znodes.local_policies(namespace))
                boundaries = await picture.reread_boundaries(namespace)
        except MalformedContent:
            return
        bundles = [b for b in self._book.assigned if namespace_of(b) == namespace]
        if boundaries is None:
            log.warning("namespace.bundles.vanished", namespace=namespace)
        for bundle in bundles:
            if boundaries is None:
                yield Disagreement(Kind.VANISHED_NAMESPACE, bundle, namespace, mended=True)
            elif self._is_foreign(bundle, boundaries.bundles):
                detail = "no bundle of its namespace, nor cut into some"
                yield Disagreement(Kind.UNKNOWN_RANGE, bundle, detail, mended=True)
