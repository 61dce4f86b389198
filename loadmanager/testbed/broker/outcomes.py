"""What the in-memory broker answers: to commands that it refuses, and to publishers."""

from dataclasses import dataclass
from enum import StrEnum

from loadmanager.core.ids import BundleId
from loadmanager.ports import BrokerRefused


class StaleToken(BrokerRefused):
    """The fencing token is older than one seen for this bundle, or its grant was ended."""


class NotNow(BrokerRefused):
    """The broker cannot do it in its present state; the agent may try again."""


class NotServed(BrokerRefused):
    """The bundle that was asked about is not served here."""


class PublishRefusal(StrEnum):
    """Why a broker does not take a message."""

    NO_LEASE = "no_lease"
    NOT_SERVED = "not_served"


@dataclass(frozen=True, slots=True)
class PublishRefused:
    """The message was not taken. ``text`` is for people."""

    why: PublishRefusal
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """The message was taken at ``clock_s``, under the grant with this token."""

    bundle: BundleId
    fencing_token: int
    clock_s: float
