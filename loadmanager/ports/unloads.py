"""What the HTTP door asks of the application about unloading bundles by hand."""

from typing import Protocol

from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.ports.lookup import LookupRefused


class UnloadRefused(LookupRefused):
    """The bundle cannot go where it was asked to go; asking again as it is will not help."""


class UnloadService(Protocol):
    """Takes bundles off their brokers on demand. Only the leader does."""

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> None:
        """Have one bundle of a namespace, or with None all, move to another broker.

        Return when the next owners have them. A bundle that nobody owns, or that is at
        its destination, is left alone. Without a ``destination`` each goes to the best
        place but the one it has; with one it goes there whatever the load.

        Raises:
            LeaderElsewhere: another sidecar leads.
            NamespaceUnknown: there is no such namespace.
            BundleUnknown: it has no such bundle.
            UnloadRefused: the destination is not registered, or is to take nothing now.
            Unavailable: nobody leads; no other broker can take the bundle, which is then
                not interrupted; or it did not arrive in time.
        """
