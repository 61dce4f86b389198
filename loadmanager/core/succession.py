"""Which of two agents of one broker goes on.

A restarted sidecar must not wait for the session of the run before it: so on one host
the later agent takes over. Two mistakes look alike and must not go on for ever:

- An agent that was frozen, was replaced, and wakes up: it has registered before, and
  finds one that registered after it. It ends.
- Two sidecars that were given one broker id, each restarted whenever it ends. Those of
  two hosts never take over from one another: the later one waits until the session of
  the earlier one is gone, which it is soon if that host has died. Those of one host are
  detected by their number: after a few take-overs that follow one another closely, the next
  one waits in the same way.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from loadmanager.core.wire import AgentRecord

MOST_TAKE_OVERS: Final = 3
SOON_MS: Final = 600_000
"""Longer than any supervisor's pause between restarts, which Kubernetes has grow to 5 minutes."""


class Verdict(StrEnum):
    """Action of an agent before its registration."""

    TAKE_OVER = "take_over"
    STAND_BY = "stand_by"
    END = "end"


@dataclass(frozen=True, slots=True)
class Rival:
    """Another agent of the same broker with a live session.

    ``epoch`` is the czxid of its mark: of two agents the later one has the higher.
    """

    record: AgentRecord
    epoch: int


def judge(
    me: AgentRecord, own_epoch: int | None, rivals: Iterable[Rival]
) -> tuple[Verdict, Rival | None]:
    """Return what ``me`` does, and the rival that decided it.

    ``own_epoch`` is the highest epoch that this agent had or saw when it last tried to
    register; None before it has tried.
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
    """Return the number of take-overs in a row if ``me`` registers over these."""
    soon = [
        rival.record.take_overs + 1
        for rival in rivals
        if abs(me.registered_at_ms - rival.record.registered_at_ms) < SOON_MS
    ]
    return max(soon, default=0)


def _elsewhere(me: AgentRecord, other: AgentRecord) -> bool:
    return bool(me.host and other.host) and me.host != other.host
