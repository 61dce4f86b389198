"""The ownership table, walked through everything that can happen to one bundle."""

from collections import deque
from dataclasses import dataclass, replace

import pytest

from loadmanager.core.ids import BundleId
from loadmanager.core.ownership import (
    Effect,
    Event,
    IllegalTransition,
    Phase,
    holds_lock,
    may_serve,
    step,
)

BUNDLE = BundleId("t/ns/0x00000000_0xffffffff")


@dataclass(frozen=True)
class World:
    """One bundle with its agent, its lock and its broker.

    Commands to the broker run one after another, so they are a queue; what is asked of
    the lock is at most one thing at a time. ``lock`` is whether our session holds it.
    ``inherited`` is what an agent before us had the broker serve, under its own lease
    and a lock that is still there: taking the lock is taking that over.
    """

    phase: Phase = Phase.FREE
    lock: bool = False
    serving: bool = False
    lock_request: Effect | None = None
    commands: tuple[Effect, ...] = ()
    inherited: bool = False

    def silent(self) -> "World":
        return replace(self, serving=False, inherited=False)

    def after(self, event: Event) -> "World":
        phase, effects = step(BUNDLE, self.phase, event)
        world = replace(self, phase=phase)
        for effect in effects:
            if effect in {Effect.TAKE_LOCK, Effect.DROP_LOCK}:
                assert world.lock_request is None, "two requests for one lock at a time"
                world = replace(world, lock_request=effect)
            else:
                world = replace(world, commands=(*world.commands, effect)[-3:])
        return world


def futures(world: World) -> list[World]:
    found = [world.after(Event.ASSIGNED), world.after(Event.RECALLED)]
    # The lock of what is inherited is an earlier session's, and outlives ours or not.
    found.append(replace(world, lock=False, lock_request=None).after(Event.SESSION_LOST))
    if world.lock_request is Effect.TAKE_LOCK:
        asked = replace(world, lock_request=None)
        found.append(replace(asked, lock=True).after(Event.LOCK_TAKEN))
        found.append(asked.after(Event.LOCK_REFUSED))
        found.append(replace(asked.silent(), lock=True).after(Event.SPLIT_OFF))
    if world.lock_request is Effect.DROP_LOCK:
        assert not world.serving, "a lock is dropped whose bundle is being served"
        dropped = replace(world, lock_request=None, lock=False)
        found += [dropped.after(Event.LOCK_DROPPED), dropped.after(Event.SPLIT_AWAY)]
    if world.lock and world.phase in {Phase.OWNED, Phase.RELEASING}:
        found.append(replace(world, lock=False).after(Event.SPLIT_AWAY))
    if world.phase is Phase.FREE and not world.commands:
        found.append(replace(world.silent(), lock=True).after(Event.SPLIT_OFF))
    if world.commands:
        found += command_outcomes(replace(world, commands=world.commands[1:]), world.commands[0])
    # The lease runs out: the broker serves nothing, and the agent may learn it either way.
    silent = world.silent()
    found.append(silent)
    if not world.commands:
        found.append(silent.after(Event.BROKER_LOST))
        if world.phase is Phase.OWNED:
            found.append(silent.after(Event.BROKER_FORGOT))
        elif may_serve(world.phase):
            found.append(silent.after(Event.BROKER_UNLOADED))
    return found


def command_outcomes(world: World, command: Effect) -> list[World]:
    if command is Effect.LOAD_ON_BROKER:
        if world.phase is Phase.OWNED:
            assert world.lock, "a bundle is loaded without its lock"
            return [world, replace(world, serving=True, inherited=False)]
        return [world]
    if world.phase is Phase.OWNED:
        return [world]
    stopped = world.silent()
    outcome = stopped.after(Event.BROKER_UNLOADED) if may_serve(world.phase) else stopped
    return [world, outcome]


def reachable() -> set[World]:
    beginnings = [World(), World(serving=True, inherited=True)]
    seen, waiting = set(beginnings), deque(beginnings)
    while waiting:
        for world in futures(waiting.popleft()):
            if world not in seen:
                seen.add(world)
                waiting.append(world)
    return seen


WORLDS = reachable()


def test_whatever_happens_what_is_served_is_known_to_the_agent_and_without_a_lock_stopped() -> None:
    assert len(WORLDS) > 15
    served = [world for world in WORLDS if world.serving and not world.inherited]
    assert all(may_serve(world.phase) for world in served)
    assert {world.phase for world in served if not world.lock} == {Phase.HALTING}
    # What was inherited is stopped before its lock is dropped.
    inherited = {world.phase for world in WORLDS if world.inherited}
    assert inherited >= {Phase.ACQUIRING, Phase.RELEASING}
    assert Phase.DROPPING not in inherited


def test_the_phase_tells_whether_the_lock_is_held_and_what_is_asked_of_it() -> None:
    assert all(holds_lock(world.phase) is world.lock for world in WORLDS)
    asked: dict[Effect | None, set[Phase]] = {}
    for world in WORLDS:
        asked.setdefault(world.lock_request, set()).add(world.phase)
    taking = {Phase.ACQUIRING, Phase.ABANDONING}
    assert asked[Effect.TAKE_LOCK] == taking
    assert asked[Effect.DROP_LOCK] == {Phase.DROPPING}
    assert asked[None] == set(Phase) - taking - {Phase.DROPPING}


def test_every_phase_can_be_left_towards_free_and_towards_owned() -> None:
    def reaches(start: World, goal: Phase) -> bool:
        seen, waiting = {start}, deque([start])
        while waiting:
            world = waiting.popleft()
            if world.phase is goal:
                return True
            for following in futures(world):
                if following not in seen:
                    seen.add(following)
                    waiting.append(following)
        return False

    assert {world.phase for world in WORLDS} == set(Phase)
    assert all(reaches(world, Phase.FREE) and reaches(world, Phase.OWNED) for world in WORLDS)


@pytest.mark.parametrize(
    ("phase", "event", "then", "effect"),
    [
        (Phase.FREE, Event.ASSIGNED, Phase.ACQUIRING, Effect.TAKE_LOCK),
        (Phase.ACQUIRING, Event.LOCK_TAKEN, Phase.OWNED, Effect.LOAD_ON_BROKER),
        (Phase.OWNED, Event.RECALLED, Phase.RELEASING, Effect.UNLOAD_FROM_BROKER),
        (Phase.RELEASING, Event.BROKER_UNLOADED, Phase.DROPPING, Effect.DROP_LOCK),
        (Phase.OWNED, Event.SESSION_LOST, Phase.HALTING, Effect.UNLOAD_FROM_BROKER),
        (Phase.HALTING, Event.ASSIGNED, Phase.HALTING, None),
        (Phase.OWNED, Event.SPLIT_AWAY, Phase.HALTING, Effect.UNLOAD_FROM_BROKER),
        (Phase.FREE, Event.SPLIT_OFF, Phase.OWNED, Effect.LOAD_ON_BROKER),
    ],
)
def test_a_bundle_is_loaded_with_its_lock_and_keeps_it_until_the_broker_stopped(
    phase: Phase, event: Event, then: Phase, effect: Effect | None
) -> None:
    assert step(BUNDLE, phase, event) == (then, () if effect is None else (effect,))


def test_an_impossible_event_names_bundle_phase_and_event() -> None:
    with pytest.raises(IllegalTransition) as caught:
        step(BUNDLE, Phase.FREE, Event.LOCK_DROPPED)
    assert str(caught.value) == f"{BUNDLE}: lock_dropped cannot happen in phase free"
    assert (caught.value.phase, caught.value.event) == (Phase.FREE, Event.LOCK_DROPPED)
