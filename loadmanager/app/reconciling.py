"""Comparing, round by round, what was ordered with what is: nothing is left behind.

Orders, boundaries, locks and lists have one writer each and agree in the end; what
does not agree by the second look is mended here or told, so that a fault nobody
thought of shows in a log and a metric and not as a bundle that is served nowhere.
"""

import structlog

from loadmanager.app.order_book import OrderBook
from loadmanager.app.parts import Parts
from loadmanager.core import znodes
from loadmanager.core.errors import InvalidName, MalformedContent
from loadmanager.core.ids import BundleId, Namespace, namespace_of, parse_bundle

log = structlog.get_logger()


class Reconciler:
    """Looks once a round, for one term."""

    def __init__(self, parts: Parts, book: OrderBook) -> None:
        self._parts = parts
        self._book = book
        self._suspects: set[BundleId] = set()

    async def look(self) -> None:
        """Mend or tell what does not agree.

        Raises:
            CoordinationError: it cannot be read, or the orders not be written, now.
        """
        bundles: dict[Namespace, set[BundleId]] = {}
        for bundle in self._book.assigned:
            bundles.setdefault(namespace_of(bundle), set()).add(bundle)
        await self._recall_vanished(bundles)
        await self._find_strays(bundles)

    async def _recall_vanished(self, bundles: dict[Namespace, set[BundleId]]) -> None:
        """Recall the bundles of namespaces that were deleted: nobody can look them up."""
        vanished: set[BundleId] = set()
        for namespace in list(bundles):
            try:
                if await self._parts.picture.boundaries(namespace) is not None:
                    continue
                # To recall a whole namespace, what one server has not heard of yet will
                # not do.
                await self._parts.coordination.sync(znodes.local_policies(namespace))
                boundaries = await self._parts.picture.reread_boundaries(namespace)
            except MalformedContent:
                continue
            if boundaries is None:
                log.warning("namespace.bundles.vanished", namespace=namespace)
                vanished |= bundles.pop(namespace)
        if vanished:
            await self._book.change(gone=vanished)

    async def _find_strays(self, bundles: dict[Namespace, set[BundleId]]) -> None:
        """Tell of locks that no broker lists, twice in a row: nobody would ever drop them.

        Lock and list change in one commit and reach the picture by two watches, so at a
        first look they may differ for a moment.
        """
        strays: set[BundleId] = set()
        for namespace in bundles:
            for name in await self._parts.coordination.children(f"{znodes.LOCKS}/{namespace}"):
                try:
                    bundle = parse_bundle(f"{namespace}/{name}")
                except InvalidName as error:
                    log.warning(
                        "znode.name.refused",
                        path=f"{znodes.LOCKS}/{namespace}/{name}",
                        error=str(error),
                    )
                    continue
                if bundle not in self._parts.picture.owners:
                    strays.add(bundle)
        for bundle in strays & self._suspects:
            log.warning("bundle.lock.stray", bundle=bundle, path=znodes.lock(bundle))
        self._parts.metrics.stray_locks.set(len(strays & self._suspects))
        self._suspects = strays
