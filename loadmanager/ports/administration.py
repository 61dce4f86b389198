"""Refusals of requests to the admin REST API."""

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


class BrokerUnknown(LookupRefused):
    """No such broker is registered."""
