"""What the HTTP door asks of the application beyond lookups and moves, and how it refuses."""

from loadmanager.ports.lookup import LookupRefused


class Missing(LookupRefused):
    """What a request names does not exist."""


class Conflict(LookupRefused):
    """A request contradicts what exists, or what somebody else does at the same moment."""


class Unfit(LookupRefused):
    """A request can never be met as it is."""
