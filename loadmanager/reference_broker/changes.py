"""Changes of an in-memory broker, the lines of its record, and what follows from them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from loadmanager.core.ids import BundleId


class EndReason(StrEnum):
    """Why a broker stopped serving a bundle."""

    UNLOADED = "unloaded"
    LEASE_LOST = "lease_lost"
    # The same broker continues under a newer token or for a newer agent, without a gap.
    REGRANTED = "regranted"
    STOPPED = "stopped"
    # Without a line: the process died, was still alive, or the record is incomplete.
    NOT_RECORDED = "not_recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A broker process began; it serves nothing yet."""

    at_s: float
    broker: str
    incarnation: str
    event: Literal["start"] = "start"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGranted:
    """The agent with this epoch granted a lease until ``until_s``."""

    at_s: float
    agent_epoch: int
    until_s: float
    event: Literal["lease"] = "lease"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLost:
    """The lease expired at ``until_s``; the broker noticed at ``at_s``."""

    at_s: float
    agent_epoch: int
    until_s: float
    event: Literal["lease_lost"] = "lease_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLoaded:
    """The broker serves the bundle from ``at_s`` on."""

    at_s: float
    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    event: Literal["load"] = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnloadBegun:
    """The bundle accepts no new requests; those in service are being finished."""

    at_s: float
    bundle: BundleId
    fencing_token: int
    event: Literal["unload"] = "unload"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingEnded:
    """The broker served the bundle from ``start_s`` to ``end_s``.

    ``end_s`` is before ``at_s`` if a lease expired unnoticed, in a process that was frozen: no
    request could be finished in between, because each one checks the lease.
    """

    at_s: float
    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    start_s: float
    end_s: float
    why: EndReason
    event: Literal["interval"] = "interval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The broker process ended by itself, and serves no bundles any more."""

    at_s: float
    event: Literal["stop"] = "stop"


Change = Started | LeaseGranted | LeaseLost | BundleLoaded | UnloadBegun | ServingEnded | Stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingInterval:
    """One broker process served one bundle under one grant from ``start_s`` up to ``end_s``.

    ``broker`` is ``host:port``, and ``incarnation`` is drawn at each start of its process. Later
    grants have higher fencing tokens. Times are on a clock that all processes share. ``end_s`` is
    infinite if its end is not recorded.
    """

    broker: str
    incarnation: str
    bundle: BundleId
    fencing_token: int
    agent_epoch: int
    start_s: float
    end_s: float
    why: EndReason

    @property
    def ended_by_command(self) -> bool:
        """Whether it ended by a command of the agent, not by the loss of a lease or process."""
        return self.why in {EndReason.UNLOADED, EndReason.REGRANTED}
