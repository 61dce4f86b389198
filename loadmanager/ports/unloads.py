"""What the HTTP door asks of the application about unloading bundles by hand."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.ports.lookup import LookupRefused


class UnloadRefused(LookupRefused):
    """The bundle cannot go where it was asked to go; asking again as it is will not help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """A bundle that has the owner it was to get.

    ``source`` is the former owner, None if the bundle had none; then nothing was done.
    ``target`` is the owner now, None if there is none or the bundle was split meanwhile.
    ``took_s`` counts from the order until the target served the bundle, as the leader saw it.
    """

    bundle: BundleId
    source: BrokerId | None = None
    target: BrokerId | None = None
    took_s: float = 0.0


class UnloadService(Protocol):
    """Takes bundles off their brokers on demand. Only the leader does."""

    async def unload(
        self, namespace: Namespace, range_text: str | None, destination: BrokerId | None
    ) -> Sequence[Unloaded]:
        """Have one bundle of a namespace, or with None all, move to another broker.

        Return when the next owners have them, with where each went. A bundle that nobody
        owns, or that is at its destination, is left alone. Without a ``destination`` each
        goes to the best place but the one it has; with one it goes there whatever the load.

        Raises:
            LeaderElsewhere: another sidecar leads.
            NamespaceUnknown: there is no such namespace.
            BundleUnknown: it has no such bundle.
            UnloadRefused: the destination is not registered, or is to take nothing now.
            Unavailable: no sidecar leads; no other broker can take the bundle, which is then
                not interrupted; or it did not arrive in time.
        """
