"""Decides which of several agents of the same broker continues.

A restarted sidecar must not wait until the session of its previous run expires: so on the same
host the later agent takes over. Two faults look similar and must not continue forever:

- An agent that was frozen, was replaced and resumes: it registered before, and finds an agent
  that registered after it. It ends.
- Two sidecars with the same broker id, each restarted whenever it ends. On different hosts they
  never take over from one another: the later one waits until the session of the earlier one has
  expired, which happens soon if that host has failed. On the same host they are detected by the
  number of take-overs: after a few in quick succession, the next agent waits in the same way.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loadmanager.core.wire.records import AgentRecord

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


def judge(
    me: AgentRecord, own_epoch: int | None, rivals: Iterable[Rival]
) -> tuple[Verdict, Rival | None]:
    """Return the action of ``me``, and the rival that determined it.

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
        if _elsewhere(me, rival.record) or take_overs(me, [rival]) > MOST_TAKE_OVERS:
            return Verdict.STAND_BY, rival
    return Verdict.TAKE_OVER, newest


def take_overs(me: AgentRecord, rivals: Iterable[Rival]) -> int:
    soon = [
        rival.record.take_overs + 1
        for rival in rivals
        if abs(me.registered_at_ms - rival.record.registered_at_ms) < SOON_MS
    ]
    return max(soon, default=0)


def _elsewhere(me: AgentRecord, other: AgentRecord) -> bool:
    return bool(me.host and other.host) and me.host != other.host
