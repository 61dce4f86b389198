"""What people ask of the application over REST, and how it is refused."""

from dataclasses import dataclass

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.wire import DrainMark
from loadmanager.ports.lookup import LookupRefused


class Missing(LookupRefused):
    """What a request names does not exist."""


class Conflict(LookupRefused):
    """A request conflicts with the present state, or with another request at the same time."""


class Unfit(LookupRefused):
    """A request can never be met as it is."""


class BundleUnknown(LookupRefused):
    """The namespace has no such bundle now."""


class SplitRefused(LookupRefused):
    """The bundle cannot be cut as asked; asking again as it is will not help."""


class MergeRefused(LookupRefused):
    """The two bundles cannot become one as they are; asking again so will not help."""


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


class BrokerUnknown(LookupRefused):
    """No such broker is registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStatus:
    """How far a broker is from being empty, as one sidecar sees it.

    ``mark`` is None for a broker without a mark. ``draining`` is what the broker's
    own report says: its agent has seen the mark, or is about to stop.
    """

    broker: BrokerId
    registered: bool
    draining: bool
    mark: DrainMark | None
    bundles_left: int
