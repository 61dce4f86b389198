"""Determines which sidecar leads, from the election node alone.

The node at ``/loadbalance/leader`` is ephemeral; the sidecar that created it leads as long as
its session lives. Each creation raises the version of ``/loadbalance/epoch`` in the same commit,
and every order is written under a check of that version. So the writes of a leader that was
replaced without noticing fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from typing import Final

from loadmanager.core.ids import BrokerId

SUCCESSORS: Final = 2
"""Two, because the failure of the leader may also affect another broker."""


class Standing(StrEnum):
    CAMPAIGN = "campaign"
    """No sidecar leads: try to create the election node."""

    LEAD = "lead"
    """The node belongs to this session: decide."""

    FOLLOW = "follow"
    """Another sidecar leads."""

    CLEAR = "clear"
    """The node belongs to an earlier process of this broker: delete it, then campaign.

    Its session would expire without this, but until then the cluster would have no leader. There
    is no risk: the next epoch fences any remaining writes of that process.
    """

    DOUBT = "doubt"
    """The connection is suspended: take no action, and answer from the known state."""


@dataclass(frozen=True, slots=True)
class Candidate:
    broker: BrokerId
    instance: str
    session_id: int


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Content and owner of the election node.

    ``broker`` is None if the content of the node cannot be read: only the session counts.
    """

    broker: BrokerId | None
    instance: str
    session_id: int


def judge(candidate: Candidate, incumbent: Incumbent | None, *, connected: bool) -> Standing:
    """Return what ``candidate`` has to do about the leadership.

    The session decides and the instance confirms: two processes configured with the same broker
    id by mistake have different instances and sessions, and only the process whose session holds
    the node leads.
    """
    if not connected:
        return Standing.DOUBT
    if incumbent is None:
        return Standing.CAMPAIGN
    if incumbent.session_id == candidate.session_id:
        return Standing.LEAD if incumbent.instance == candidate.instance else Standing.CLEAR
    if incumbent.broker == candidate.broker:
        return Standing.CLEAR
    return Standing.FOLLOW


def successors(
    registered_as: Mapping[BrokerId, int], leader: BrokerId | None
) -> frozenset[BrokerId]:
    """Return the sidecars next in line to lead: those registered longest, without the leader.

    ``registered_as`` are the czxids of the registrations, so all sidecars compute the same
    successors. The others campaign after them in an election, and read no loads until then.
    """
    others = [broker for broker in registered_as if broker != leader]
    return frozenset(nsmallest(SUCCESSORS, others, key=lambda one: (registered_as[one], one)))
