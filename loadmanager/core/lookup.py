"""What to do with a lookup, decided from this sidecar's state.

Pulsar answers 200 for an owned bundle wherever it is asked, and redirects only for
the assignment of an unowned one: to the leader, and from the leader, once it has
decided, with ``authoritative=true`` to the planned owner. In answer mode we make
these hops ourselves; in redirect mode the client makes them. Either way the flag
ends the chain: a sidecar that is asked authoritatively never sends the client on.
"""

from enum import StrEnum


class LookupMode(StrEnum):
    """The side that asks the leader for an unowned bundle: this sidecar, or the client."""

    ANSWER = "answer"
    REDIRECT = "redirect"


class LeaderPlace(StrEnum):
    """Where the leader is, seen from the sidecar that was asked."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"


class LookupStep(StrEnum):
    """The next thing to do for one lookup."""

    ANSWER_OWNER = "answer_owner"
    ASSIGN_HERE = "assign_here"
    ASK_LEADER = "ask_leader"
    REDIRECT_TO_LEADER = "redirect_to_leader"
    REDIRECT_TO_COMING = "redirect_to_coming"
    AWAIT_OWNER = "await_owner"


def next_step(
    mode: LookupMode,
    leader: LeaderPlace,
    *,
    owned: bool,
    authoritative: bool,
    coming: bool = False,
) -> LookupStep:
    """Return what to do next for a lookup.

    ``owned`` says that the picture has an owner that is registered and serves.
    ``coming`` says that it is on its way to a broker that is known here: the leader
    has the same state, so it is not asked. Without a leader the lookup waits
    for the next one: a follower that decided for itself would do so on its own view,
    and two of them on two views.
    """
    if owned:
        return LookupStep.ANSWER_OWNER
    redirects = mode is LookupMode.REDIRECT
    if coming and redirects and not authoritative:
        return LookupStep.REDIRECT_TO_COMING
    if coming or leader is LeaderPlace.NOWHERE or (redirects and authoritative):
        return LookupStep.AWAIT_OWNER
    if leader is LeaderPlace.HERE:
        return LookupStep.ASSIGN_HERE
    return LookupStep.REDIRECT_TO_LEADER if redirects else LookupStep.ASK_LEADER
