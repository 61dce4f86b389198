"""Decides how to handle a lookup, from this sidecar's state.

Any Pulsar broker answers 200 for an owned bundle, and redirects only for the assignment of an
unowned one: to the leader, and once the leader has decided, with ``authoritative=true`` to the
planned owner. In answer mode the sidecar follows these redirects itself; in redirect mode the
client follows them. Either way the flag ends the chain: a sidecar never redirects an
authoritative lookup.
"""

from enum import StrEnum


class LookupMode(StrEnum):
    """Whether this sidecar or the client asks the leader for an unowned bundle."""

    ANSWER = "answer"
    REDIRECT = "redirect"


class LeaderPlace(StrEnum):
    """Where the leader is, seen from the sidecar that received the lookup."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"


class LookupStep(StrEnum):
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
    """Return the next step for a lookup.

    ``owned`` is whether the cluster state has an owner that is registered and serves. ``coming``
    is whether the bundle is under way to a broker known to this sidecar: the leader has the same
    state, so it is not asked. Without a leader the lookup waits for the next one: if followers
    decided themselves, two of them could decide on different views.
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
