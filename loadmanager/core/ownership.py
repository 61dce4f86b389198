"""The life cycle of one bundle on one agent, as a table.

This file holds everything that changes an ownership's phase, and uses neither ZooKeeper nor
HTTP: it takes an event and returns the next phase and the effects to carry out. Their outcome is
the next event.

Orders are levels ("what this broker should own"), so ASSIGNED and RECALLED may come
at any time and any number of times. In a phase that has something to finish first they change
nothing; the comparison after every return to FREE or OWNED repeats them if they still apply.

The lock decides which broker may serve. A bundle is loaded on the broker only after the lock
was taken, and the lock is dropped only after the broker confirmed that it stopped (or can no
longer serve, because its lease expired). Operations under way when the session ends belong to
the old session: their outcome is not reported as an event.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from loadmanager.core.errors import LoadManagerError
from loadmanager.core.ids import BundleId


class Phase(StrEnum):
    FREE = "free"
    ACQUIRING = "acquiring"
    ABANDONING = "abandoning"
    OWNED = "owned"
    RELEASING = "releasing"
    DROPPING = "dropping"
    HALTING = "halting"


class Event(StrEnum):
    ASSIGNED = "assigned"
    RECALLED = "recalled"
    LOCK_TAKEN = "lock_taken"
    LOCK_REFUSED = "lock_refused"
    LOCK_DROPPED = "lock_dropped"
    BROKER_UNLOADED = "broker_unloaded"
    BROKER_FORGOT = "broker_forgot"
    BROKER_LOST = "broker_lost"
    SESSION_LOST = "session_lost"
    SPLIT_AWAY = "split_away"
    """A commit replaced this bundle's lock and range by those of its parts."""
    SPLIT_OFF = "split_off"
    """A commit created this bundle, with its lock, as a part of one that was owned here."""


class Effect(StrEnum):
    TAKE_LOCK = "take_lock"
    DROP_LOCK = "drop_lock"
    LOAD_ON_BROKER = "load_on_broker"
    UNLOAD_FROM_BROKER = "unload_from_broker"


class IllegalTransition(LoadManagerError):
    """An event occurred in a phase in which it is not possible: a fault of the caller."""

    def __init__(self, bundle: BundleId, phase: Phase, event: Event) -> None:
        super().__init__(f"{bundle}: {event.value} cannot happen in phase {phase.value}")
        self.phase = phase
        self.event = event


_P, _E, _F = Phase, Event, Effect

_TABLE: Final[Mapping[tuple[Phase, Event], tuple[Phase, tuple[Effect, ...]]]] = {
    (_P.FREE, _E.ASSIGNED): (_P.ACQUIRING, (_F.TAKE_LOCK,)),
    (_P.FREE, _E.RECALLED): (_P.FREE, ()),
    (_P.FREE, _E.SESSION_LOST): (_P.FREE, ()),
    (_P.FREE, _E.BROKER_LOST): (_P.FREE, ()),
    (_P.FREE, _E.SPLIT_OFF): (_P.OWNED, (_F.LOAD_ON_BROKER,)),
    (_P.ACQUIRING, _E.ASSIGNED): (_P.ACQUIRING, ()),
    (_P.ACQUIRING, _E.LOCK_TAKEN): (_P.OWNED, (_F.LOAD_ON_BROKER,)),
    # The reply was lost, and orders for the part arrived before the split was observed.
    (_P.ACQUIRING, _E.SPLIT_OFF): (_P.OWNED, (_F.LOAD_ON_BROKER,)),
    # Another broker still holds the lock; the comparison with the orders will retry.
    (_P.ACQUIRING, _E.LOCK_REFUSED): (_P.FREE, ()),
    # The create is under way and may succeed: only its outcome ends this phase.
    (_P.ACQUIRING, _E.RECALLED): (_P.ABANDONING, ()),
    (_P.ACQUIRING, _E.SESSION_LOST): (_P.FREE, ()),
    # A lock may briefly be held without a broker; the broker is called again later.
    (_P.ACQUIRING, _E.BROKER_LOST): (_P.ABANDONING, ()),
    (_P.ABANDONING, _E.ASSIGNED): (_P.ACQUIRING, ()),
    (_P.ABANDONING, _E.RECALLED): (_P.ABANDONING, ()),
    # This agent never loaded it, but an earlier agent may have, and the broker serves it under
    # that agent's lease until the lock is taken over: so the broker must unload it here too.
    (_P.ABANDONING, _E.LOCK_TAKEN): (_P.RELEASING, (_F.UNLOAD_FROM_BROKER,)),
    (_P.ABANDONING, _E.SPLIT_OFF): (_P.RELEASING, (_F.UNLOAD_FROM_BROKER,)),
    (_P.ABANDONING, _E.LOCK_REFUSED): (_P.FREE, ()),
    (_P.ABANDONING, _E.SESSION_LOST): (_P.FREE, ()),
    (_P.ABANDONING, _E.BROKER_LOST): (_P.ABANDONING, ()),
    (_P.OWNED, _E.ASSIGNED): (_P.OWNED, ()),
    (_P.OWNED, _E.RECALLED): (_P.RELEASING, (_F.UNLOAD_FROM_BROKER,)),
    # The broker restarted, or its lease expired and was renewed in the same session: no other
    # broker held the lock, so the same token is valid again.
    (_P.OWNED, _E.BROKER_FORGOT): (_P.OWNED, (_F.LOAD_ON_BROKER,)),
    # The lease expired without renewal, so the broker cannot serve; others may.
    (_P.OWNED, _E.BROKER_LOST): (_P.DROPPING, (_F.DROP_LOCK,)),
    # A lost session took the lock with it, and another agent may hold it already:
    # the broker must stop, and no order counts until it has.
    (_P.OWNED, _E.SESSION_LOST): (_P.HALTING, (_F.UNLOAD_FROM_BROKER,)),
    # The parts now cover the range on this broker; the split bundle no longer has a lock and is
    # unloaded once they serve.
    (_P.OWNED, _E.SPLIT_AWAY): (_P.HALTING, (_F.UNLOAD_FROM_BROKER,)),
    (_P.RELEASING, _E.ASSIGNED): (_P.RELEASING, ()),
    (_P.RELEASING, _E.RECALLED): (_P.RELEASING, ()),
    (_P.RELEASING, _E.BROKER_UNLOADED): (_P.DROPPING, (_F.DROP_LOCK,)),
    (_P.RELEASING, _E.BROKER_LOST): (_P.DROPPING, (_F.DROP_LOCK,)),
    # The unload that halting requires is already under way.
    (_P.RELEASING, _E.SESSION_LOST): (_P.HALTING, ()),
    # Recalled while the commit of the split was under way.
    (_P.RELEASING, _E.SPLIT_AWAY): (_P.HALTING, ()),
    (_P.DROPPING, _E.ASSIGNED): (_P.DROPPING, ()),
    (_P.DROPPING, _E.RECALLED): (_P.DROPPING, ()),
    (_P.DROPPING, _E.LOCK_DROPPED): (_P.FREE, ()),
    (_P.DROPPING, _E.BROKER_LOST): (_P.DROPPING, ()),
    # It was unloaded while the commit of the split was under way; that commit dropped its lock.
    (_P.DROPPING, _E.SPLIT_AWAY): (_P.FREE, ()),
    (_P.DROPPING, _E.SESSION_LOST): (_P.FREE, ()),
    (_P.HALTING, _E.ASSIGNED): (_P.HALTING, ()),
    (_P.HALTING, _E.RECALLED): (_P.HALTING, ()),
    (_P.HALTING, _E.BROKER_UNLOADED): (_P.FREE, ()),
    (_P.HALTING, _E.BROKER_LOST): (_P.FREE, ()),
    (_P.HALTING, _E.SESSION_LOST): (_P.HALTING, ()),
}

Step = tuple[Phase, tuple[Effect, ...]]


def step(bundle: BundleId, phase: Phase, event: Event) -> Step:
    """Raises `IllegalTransition`: ``event`` cannot happen in ``phase``."""
    try:
        return _TABLE[phase, event]
    except KeyError:
        raise IllegalTransition(bundle, phase, event) from None


def may_serve(phase: Phase) -> bool:
    return phase in {Phase.OWNED, Phase.RELEASING, Phase.HALTING}


def holds_lock(phase: Phase) -> bool:
    return phase in {Phase.OWNED, Phase.RELEASING, Phase.DROPPING}
