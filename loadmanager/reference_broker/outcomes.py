"""Answers of the in-memory broker: refusals of commands, and results for publishers."""

from dataclasses import dataclass
from enum import StrEnum

from loadmanager.core.ids import BundleId
from loadmanager.ports.broker import BrokerRefused


class StaleToken(BrokerRefused):
    """The fencing token is older than one seen for this bundle, or was ended by an unload."""


class NotNow(BrokerRefused):
    """The command is not possible in the broker's current state; the agent may retry."""


class NotServed(BrokerRefused):
    """The requested bundle is not served here."""


class PublishRefusal(StrEnum):
    """Reasons of a broker for not accepting a message."""

    NO_LEASE = "no_lease"
    NOT_SERVED = "not_served"


@dataclass(frozen=True, slots=True)
class PublishRefused:
    """The message was not accepted. ``text`` is the explanation for logs."""

    why: PublishRefusal
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The message was accepted at ``clock_s``, under the grant with this token."""

    bundle: BundleId
    fencing_token: int
    clock_s: float
