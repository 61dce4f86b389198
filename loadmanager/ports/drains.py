"""What the HTTP door asks of the application about emptying brokers."""

from dataclasses import dataclass
from typing import Protocol

from loadmanager.core.ids import BrokerId
from loadmanager.core.wire import DrainMark
from loadmanager.ports.lookup import LookupRefused


class BrokerUnknown(LookupRefused):
    """No such broker is registered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainStatus:
    """How far a broker is from being empty, as one sidecar sees it.

    ``mark`` is None for a broker that nobody marked. ``draining`` is what the broker's
    own report says: its agent has seen the mark, or is about to stop.
    """

    broker: BrokerId
    registered: bool
    draining: bool
    mark: DrainMark | None
    bundles_left: int


class DrainService(Protocol):
    """Marks brokers that are to be emptied and take nothing. Every sidecar can.

    All methods raise `Unavailable` while the marks cannot be read or written.
    """

    async def mark(self, broker: BrokerId, *, by: str, reason: str) -> None:
        """Have a broker emptied, until `unmark`; a mark that stands already is kept.

        Raises:
            BrokerUnknown: it is not registered.
        """

    async def unmark(self, broker: BrokerId) -> None:
        """Let a broker take bundles again; without a mark there is nothing to do."""

    async def status(self, broker: BrokerId) -> DrainStatus:
        """Return how far a broker is.

        Raises:
            BrokerUnknown: it is neither registered nor marked.
        """
