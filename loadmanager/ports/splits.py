"""What the HTTP door asks of the application about splitting bundles by hand."""

from typing import Protocol

from loadmanager.core.ids import Namespace
from loadmanager.core.orders import SplitOrder
from loadmanager.ports.lookup import LookupRefused


class BundleUnknown(LookupRefused):
    """The namespace has no such bundle now."""


class SplitRefused(LookupRefused):
    """The bundle cannot be cut as asked; asking again as it is will not help."""


class SplitService(Protocol):
    """Cuts bundles on demand. Only the leader does."""

    async def split(self, namespace: Namespace, chosen: str, order: SplitOrder) -> None:
        """Have a bundle cut, and return when its parts are in the namespace's boundaries.

        ``chosen`` is a range (``0xLLLLLLLL_0xUUUUUUUU``), ``LARGEST`` for the bundle with
        the most topics, or ``HOT`` for the one with the most traffic.

        Raises:
            LeaderElsewhere: another sidecar leads.
            NamespaceUnknown: there is no such namespace.
            BundleUnknown: it has no such bundle, or none that anybody reports.
            SplitRefused: the algorithm or its positions do not fit, or no broker owns the bundle.
            Unavailable: no leader is at work, or it was not cut in time.
        """
