"""What the HTTP door asks of the application about merging bundles."""

from typing import Protocol

from loadmanager.core.ids import BundleId, Namespace
from loadmanager.ports.lookup import LookupRefused


class MergeRefused(LookupRefused):
    """The two bundles cannot become one as they are; asking again so will not help."""


class MergeService(Protocol):
    """Makes one bundle of two neighbours. Only the leader does."""

    async def merge(self, namespace: Namespace, range_text: str, other: str | None) -> BundleId:
        """Have two bundles merged, and return the whole when it is in the boundaries.

        ``other`` is the range of the second one, None for the next one.

        Raises:
            LeaderElsewhere: this sidecar does not lead; another does.
            NamespaceUnknown: there is no such namespace.
            BundleUnknown: it has no such bundle.
            MergeRefused: they are not adjacent, no broker owns one of them, the whole would
                be cut again at once, or neither owner may have both.
            Conflict: one of them is being split or merged, or is on its way.
            Unavailable: it was not done in time; they stay as they were.
        """
