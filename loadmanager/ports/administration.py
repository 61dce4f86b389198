"""Results and refusals of requests to the admin REST API."""

from dataclasses import dataclass

from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.wire import DrainMark
from loadmanager.ports.lookup import LookupRefused


class Missing(LookupRefused):
    """The subject of a request does not exist."""


class Conflict(LookupRefused):
    """A request conflicts with the present state, or with a concurrent request."""


class Unfit(LookupRefused):
    """A request can never be met as it is."""


class BundleUnknown(LookupRefused):
    """The namespace has no such bundle now."""


class SplitRefused(LookupRefused):
    """The bundle cannot be split as requested; a retry cannot succeed unless it changes."""


class MergeRefused(LookupRefused):
    """The two bundles cannot be merged; a retry cannot succeed unless they change."""


class UnloadRefused(LookupRefused):
    """The bundle cannot move to the destination; a retry cannot succeed unless that changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unloaded:
    """The result of an unload: a bundle that its next owner serves.

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
    """The progress of a drain, as one sidecar observes it.

    ``mark`` is None for a broker without a mark. ``draining`` is what the broker's
    own report says: its agent has seen the mark, or is about to stop.
    """

    broker: BrokerId
    registered: bool
    draining: bool
    mark: DrainMark | None
    bundles_left: int
