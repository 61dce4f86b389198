"""Which sidecar leads, by the election node alone.

The node at ``/loadbalance/leader`` is one ephemeral; the sidecar that created it leads as
long as its session lives. Each creation raises the version of ``/loadbalance/epoch``
in the same commit, and every order is written under a check of that version. So a
leader that was replaced without knowing it can still believe what it likes: its
writes fail.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loadmanager.core.ids import BrokerId

SUCCESSORS: Final = 2
"""Two, because the leader's failure may well be that of another broker too."""


class Standing(StrEnum):
    """What an agent has to do about the leadership, from what it has read."""

    CAMPAIGN = "campaign"
    """No sidecar leads: try to create the election node."""

    LEAD = "lead"
    """The node is ours, of this session: decide."""

    FOLLOW = "follow"
    """Another sidecar leads."""

    CLEAR = "clear"
    """The node is of an earlier life of this very broker: delete it, then campaign.

    Its session would expire by itself, but the cluster would be without a leader for
    so long. Nothing is risked: the next epoch fences whatever that life still does.
    """

    DOUBT = "doubt"
    """The connection is suspended: act on nothing, and answer from what is known."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """The agent that is judged. ``instance`` is generated at each start."""

    broker: BrokerId
    instance: str
    session_id: int


@dataclass(frozen=True, slots=True)
class Incumbent:
    """Content and owner of the election node.

    ``broker`` is None in a node whose content cannot be read: only the session counts.
    """

    broker: BrokerId | None
    instance: str
    session_id: int


def judge(candidate: Candidate, incumbent: Incumbent | None, *, connected: bool) -> Standing:
    """Return what ``candidate`` has to do about the leadership.

    The session decides and the instance confirms: two processes that were given the
    same broker id by mistake have different instances and sessions, and only the one
    whose session holds the node leads.
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
    """Return the sidecars that are ready to lead: those registered longest, without the leader.

    ``registered_as`` are the czxids of the registrations, so all sidecars name the same
    brokers. The others let them go first in an election, and read no loads until then.
    """
    others = [broker for broker in registered_as if broker != leader]
    return frozenset(sorted(others, key=lambda one: (registered_as[one], one))[:SUCCESSORS])
