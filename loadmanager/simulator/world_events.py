"""The events of a scenario at their times, and their consequences."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Literal

from loadmanager.simulator.fleet import Fleet
from loadmanager.simulator.hand_overs import HandOvers, Members
from loadmanager.simulator.scenario.events import (
    Crash,
    Drain,
    Event,
    Join,
    Leave,
    Noise,
    Restart,
    Shift,
    Silence,
)
from loadmanager.simulator.workload import Workload

Action = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Silenced:
    rows: tuple[int, ...]
    until_s: float


@dataclass(frozen=True, slots=True)
class _Draining:
    when_empty: Action
    when_lost: Action


@dataclass(slots=True, kw_only=True)
class WorldEvents:
    """Runs events in order of time; at the same time in the order of the scenario.

    ``texts`` are the events with their times. ``silences`` are for the agents; the caller clears
    them.
    """

    fleet: Fleet
    members: Members
    hand_overs: HandOvers
    workload: Workload
    session_timeout_s: float
    texts: list[tuple[float, str]] = field(default_factory=list)
    silences: list[Silenced] = field(default_factory=list)
    _due: list[tuple[float, int, Action]] = field(default_factory=list)
    _serial: "count[int]" = field(default_factory=count)
    _draining: dict[int, _Draining] = field(default_factory=dict)

    def plan(self, events: Iterable[Event]) -> None:
        for event in events:
            self._at(event.at_s, self._action(event))

    def advance(self, now_s: float) -> None:
        """Run all events that are due until ``now_s``, and the hand-overs in between."""
        while self._due and self._due[0][0] <= now_s:
            at_s, _, action = heappop(self._due)
            self.hand_overs.advance(at_s)
            action(at_s)
        self.hand_overs.advance(now_s)
        for row in [row for row in self._draining if self.hand_overs.is_empty(row)]:
            self._draining.pop(row).when_empty(now_s)

    def _at(self, at_s: float, action: Action) -> None:
        heappush(self._due, (at_s, next(self._serial), action))

    def _action(self, event: Event) -> Action:
        if isinstance(event, Shift):
            return lambda at_s: self._shift(event, at_s)
        rows = self.fleet.rows(event.brokers)
        match event:
            case Restart():
                return lambda at_s: self._restart(event, rows, at_s)
            case Noise():
                return lambda at_s: self._noise(event, rows, at_s)
            case Silence():
                return lambda at_s: self._silence(event, rows, at_s)
            case Join() | Leave() | Crash() | Drain():
                return lambda at_s: self._each(event.kind, rows, at_s)

    def _each(
        self, kind: Literal["join", "leave", "crash", "drain"], rows: list[int], at_s: float
    ) -> None:
        one = {
            "join": self._join,
            "leave": self._leave,
            "crash": self._crash,
            "drain": self._drain,
        }
        for row in rows:
            one[kind](row, at_s)

    def _add_text(self, at_s: float, row: int, what: str) -> None:
        self.texts.append((at_s, f"{self.fleet.brokers[row]} {what}"))

    def _join(self, row: int, at_s: float) -> None:
        members = self.members
        if members.alive[row]:
            return
        if members.registered[row]:  # Its former session still exists.
            self._at(float(members.session_ends_s[row]), lambda then_s: self._join(row, then_s))
            return
        members.begin(row, at_s)
        self._add_text(at_s, row, "joined")

    def _leave(self, row: int, at_s: float) -> None:
        if self.members.alive[row]:
            self._gone(row, at_s)
            self._add_text(at_s, row, "left")

    def _gone(self, row: int, at_s: float) -> None:
        draining = self._draining.pop(row, None)
        if draining is not None:
            draining.when_lost(at_s)
        self.members.deregister(row)
        self.hand_overs.freed(row, at_s)

    def _crash(self, row: int, at_s: float) -> None:
        if not self.members.alive[row]:
            return
        ends_s = at_s + self.session_timeout_s
        self.members.die(row, ends_s)
        self.hand_overs.stopped(row, at_s)
        self.silences.append(Silenced((row,), ends_s))
        self._at(ends_s, lambda then_s: self._session_ends(row, then_s))
        self._add_text(at_s, row, "crashed")

    def _session_ends(self, row: int, at_s: float) -> None:
        self._gone(row, at_s)
        self._add_text(at_s, row, "lost its session")

    def _drain(self, row: int, at_s: float) -> None:
        if self.members.alive[row]:
            leaving = _Draining(lambda then_s: self._leave(row, then_s), lambda _: None)
            self._begin_drain(row, at_s, leaving)

    def _begin_drain(self, row: int, at_s: float, draining: _Draining) -> None:
        self.members.draining[row] = True
        self._draining[row] = draining
        self._add_text(at_s, row, "drains")

    def _restart(self, event: Restart, rows: list[int], at_s: float) -> None:
        """Restart the first of ``rows``; the others follow when it has joined again."""
        if not rows:
            return
        row, others = rows[0], rows[1:]
        if not self.members.alive[row]:
            self._restart(event, others, at_s)
            return
        next_s = at_s + event.every_s

        def go_down(then_s: float) -> None:
            self._leave(row, then_s)
            self._at(then_s + event.down_s, come_back)

        def come_back(then_s: float) -> None:
            self._join(row, then_s)
            go_on(then_s)

        def go_on(then_s: float) -> None:
            self._at(max(next_s, then_s), lambda late_s: self._restart(event, others, late_s))

        if event.drained:
            self._begin_drain(row, at_s, _Draining(go_down, go_on))
        else:
            go_down(at_s)

    def _noise(self, event: Noise, rows: list[int], at_s: float) -> None:
        self.members.noise_cores[rows] += event.cores
        for row in rows:
            self._add_text(at_s, row, f"has noisy neighbours: {event.cores:g} cores")

        def end(then_s: float) -> None:
            self.members.noise_cores[rows] -= event.cores
            for row in rows:
                self._add_text(then_s, row, "is alone again")

        self._at(at_s + event.for_s, end)

    def _silence(self, event: Silence, rows: list[int], at_s: float) -> None:
        self.silences.append(Silenced(tuple(rows), at_s + event.for_s))
        for row in rows:
            self._add_text(at_s, row, f"reports nothing for {event.for_s:g} s")

    def _shift(self, event: Shift, at_s: float) -> None:
        self.workload.shift(event.namespace, event.factor)
        self.texts.append((at_s, f"{event.namespace} times {event.factor:g}"))
