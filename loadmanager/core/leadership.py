"""Determines which sidecar leads, from the election node alone.

The node at ``/loadbalance/leader`` is ephemeral; the sidecar that created it leads as long as
its session lives. Each creation raises the version of ``/loadbalance/epoch`` in the same commit,
and every order is written under a check of that version. So the writes of a leader that was
replaced without noticing fail.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from heapq import nsmallest
from typing import Final

from loadmanager.core.ids import BrokerId
from loadmanager.core.wire.records import AgentRecord

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
class Contender:
    """Content and owner of the election node, or what a candidate would make them.

    ``broker`` is None if the content of the node cannot be read: only the session counts.
    """

    broker: BrokerId | None
    instance: str
    session_id: int


def judge(candidate: Contender, incumbent: Contender | None, *, connected: bool) -> Standing:
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


MOST_TAKE_OVERS: Final = 3
SOON_MS: Final = 600_000
"""Longer than a supervisor's delay between restarts, which reaches 5 minutes in Kubernetes."""


class Verdict(StrEnum):
    TAKE_OVER = "take_over"
    STAND_BY = "stand_by"
    END = "end"


@dataclass(frozen=True, slots=True)
class Rival:
    """Another agent of the same broker with a live session.

    ``epoch`` is the czxid of its mark: a later agent has a higher one.
    """

    record: AgentRecord
    epoch: int


def judge_rivals(
    me: AgentRecord, own_epoch: int | None, rivals: Iterable[Rival]
) -> tuple[Verdict, Rival | None]:
    """Return which of several agents of one broker continues: the action of ``me``, and the rival.

    A restarted sidecar must not wait until the session of its previous run expires: so on the same
    host the later agent takes over. Two faults look similar and must not continue forever:

    - An agent that was frozen, was replaced and resumes: it registered before, and finds an agent
      that registered after it. It ends.
    - Two sidecars with the same broker id, each restarted whenever it ends. On different hosts they
      never take over from one another: the later one waits until the session of the earlier one
      has expired, which happens soon if that host has failed. On the same host they are detected
      by the number of take-overs: after a few in quick succession, the next agent waits as well.

    ``own_epoch`` is the highest epoch that this agent had or saw when it last tried to register;
    None before the first attempt.
    """
    living = sorted(rivals, key=lambda rival: rival.epoch, reverse=True)
    if not living:
        return Verdict.TAKE_OVER, None
    newest = living[0]
    if own_epoch is not None:
        verdict = Verdict.END if newest.epoch > own_epoch else Verdict.TAKE_OVER
        return verdict, newest
    for rival in living:
        elsewhere = me.host and rival.record.host not in {"", me.host}
        if elsewhere or take_overs(me, [rival]) > MOST_TAKE_OVERS:
            return Verdict.STAND_BY, rival
    return Verdict.TAKE_OVER, newest


def take_overs(me: AgentRecord, rivals: Iterable[Rival]) -> int:
    soon = [
        rival.record.take_overs + 1
        for rival in rivals
        if abs(me.registered_at_ms - rival.record.registered_at_ms) < SOON_MS
    ]
    return max(soon, default=0)
