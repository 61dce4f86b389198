"""The modelled world: capacity and costs of brokers, the demand of clients, and events in time."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import Literal

import numpy as np

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import Namespace
from loadmanager.core.optimality import Assignable, by_namespace, confinements, excess_over_level
from loadmanager.core.plan import Move
from loadmanager.core.policies import open_to
from loadmanager.core.rates import MSGS_IN, MSGS_OUT
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.agents import Measured
from loadmanager.simulator.brokers import (
    NOBODY,
    Fleet,
    HandOvers,
    Members,
    Use,
    grown_cpu,
    in_report_units,
)
from loadmanager.simulator.results import Why
from loadmanager.simulator.scenario import (
    Event,
    HiddenSettings,
    Membership,
    Noise,
    Restart,
    Scenario,
    ScenarioError,
    Shift,
    Silence,
    policies_of,
)
from loadmanager.simulator.traces import Trace
from loadmanager.simulator.workload import Topics, Workload

Action = Callable[[float], None]


@dataclass(slots=True, kw_only=True)
class WorldEvents:
    """Runs events in order of time; at the same time in the order of the scenario.

    ``texts`` are the events with their times. ``silences`` are rows of brokers whose agents are
    silent, and until when; the caller clears them.
    """

    fleet: Fleet
    members: Members
    hand_overs: HandOvers
    workload: Workload
    session_timeout_s: float
    texts: list[tuple[float, str]] = field(default_factory=list)
    silences: list[tuple[list[int], float]] = field(default_factory=list)
    _due: list[tuple[float, int, Action]] = field(default_factory=list)
    _serial: "count[int]" = field(default_factory=count)
    # What happens to a draining broker once it is empty, and if it is lost before.
    _draining: dict[int, tuple[Action, Action]] = field(default_factory=dict)

    def plan(self, events: Iterable[Event]) -> None:
        for event in events:
            self._at(event.at_s, partial(self._run, event))

    def advance(self, now_s: float) -> None:
        """Run all events that are due until ``now_s``, and the hand-overs in between."""
        while self._due and self._due[0][0] <= now_s:
            at_s, _, action = heappop(self._due)
            self.hand_overs.advance(at_s)
            action(at_s)
        self.hand_overs.advance(now_s)
        for row in [row for row in self._draining if self.hand_overs.is_empty(row)]:
            self._draining.pop(row)[0](now_s)

    def _at(self, at_s: float, action: Action) -> None:
        heappush(self._due, (at_s, next(self._serial), action))

    def _run(self, event: Event, at_s: float) -> None:
        if isinstance(event, Shift):
            self.workload.shift(event.namespace, event.factor)
            self.texts.append((at_s, f"{event.namespace} times {event.factor:g}"))
            return
        rows = self.fleet.rows(event.brokers)
        match event:
            case Restart():
                self._restart(event, rows, at_s)
            case Noise():
                self._noise(event, rows, at_s)
            case Silence(for_s=for_s):
                self.silences.append((rows, at_s + for_s))
                self._add_text(at_s, rows, f"reports nothing for {for_s:g} s")
            case Membership(kind=kind):
                for row in rows:
                    if kind == "join":
                        self._join(row, at_s)
                    elif self.members.alive[row]:
                        self._end(kind, row, at_s)

    def _add_text(self, at_s: float, rows: Iterable[int], what: str) -> None:
        self.texts += [(at_s, f"{self.fleet.brokers[row]} {what}") for row in rows]

    def _join(self, row: int, at_s: float) -> None:
        members = self.members
        if members.alive[row]:
            return
        if members.registered[row]:  # Its former session still exists.
            self._at(float(members.session_ends_s[row]), partial(self._join, row))
            return
        members.begin(row, at_s)
        self._add_text(at_s, [row], "joined")

    def _end(self, how: Literal["leave", "crash", "drain"], row: int, at_s: float) -> None:
        if how == "drain":
            self._begin_drain(row, at_s, partial(self._leave, row), lambda _: None)
        elif how == "leave":
            self._leave(row, at_s)
        else:
            ends_s = at_s + self.session_timeout_s
            self.members.die(row, ends_s)
            self.hand_overs.stopped(row, at_s)
            self.silences.append(([row], ends_s))
            self._at(ends_s, partial(self._gone, row, "lost its session"))
            self._add_text(at_s, [row], "crashed")

    def _leave(self, row: int, at_s: float) -> None:
        if self.members.alive[row]:
            self._gone(row, "left", at_s)

    def _gone(self, row: int, text: str, at_s: float) -> None:
        if row in self._draining:
            self._draining.pop(row)[1](at_s)
        self.members.deregister(row)
        self.hand_overs.freed(row, at_s)
        self._add_text(at_s, [row], text)

    def _begin_drain(self, row: int, at_s: float, when_empty: Action, when_lost: Action) -> None:
        self.members.draining[row] = True
        self._draining[row] = when_empty, when_lost
        self._add_text(at_s, [row], "drains")

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
            self._at(max(next_s, then_s), partial(self._restart, event, others))

        if event.drained:
            self._begin_drain(row, at_s, go_down, go_on)
        else:
            go_down(at_s)

    def _noise(self, event: Noise, rows: list[int], at_s: float) -> None:
        self.members.noise_cores[rows] += event.cores
        self._add_text(at_s, rows, f"has noisy neighbours: {event.cores:g} cores")

        def end(then_s: float) -> None:
            self.members.noise_cores[rows] -= event.cores
            self._add_text(then_s, rows, "is alone again")

        self._at(at_s + event.for_s, end)


class HiddenCosts:
    """The hidden costs of K bundles, step by step.

    ``cpu_factor`` (K,) is the CPU cost of the traffic of a bundle as a multiple of the cost by its
    rates, without the costs of moves; ``clients`` (K,) reconnect when a bundle has moved.
    """

    def __init__(
        self, settings: HiddenSettings, clients: FloatArray, rng: np.random.Generator
    ) -> None:
        self._settings = settings
        self._clients = clients
        # Log-normal factors with mean 1 and the standard deviation of the setting.
        variance = math.log1p(settings.bundle_cpu_spread * settings.bundle_cpu_spread)
        self.cpu_factor = np.asarray(
            rng.lognormal(-variance / 2.0, math.sqrt(variance), len(clients))
        )
        self._waiting_s = np.zeros(len(clients))
        self._now_s = self._step_s = 0.0
        self._age_s = np.full(len(clients), np.inf)

    def advance(self, now_s: float, hand_overs: HandOvers) -> None:
        """Add the arrivals and the backlogs of the step that ends at ``now_s``."""
        self._step_s, self._now_s = now_s - self._now_s, now_s
        self._age_s = now_s - hand_overs.served_since_s
        waited_s = self._waiting_s + hand_overs.take_waited_s()
        self._waiting_s = np.minimum(waited_s, self._settings.backlog_s)

    def cpu_factor_now(self) -> FloatArray:
        """Return (K,) `cpu_factor` with the effect of cold caches, mean over the step."""
        cold_s = self._settings.cold_s
        more = self._settings.cold_cpu_factor - 1.0
        if self._step_s <= 0 or cold_s <= 0 or not (self._age_s < cold_s + self._step_s).any():
            return self.cpu_factor
        # The extra cost falls linearly: its integral up to the age a is a - a^2 / (2 cold_s).
        until, since = (age_s - age_s**2 / (2 * cold_s) for age_s in self._ages_within(cold_s))
        return np.asarray(self.cpu_factor * (1.0 + more * (until - since) / self._step_s))

    def reconnecting_cores(self, owner: Indices, brokers: int) -> FloatArray:
        """Return (brokers,) the CPU for reconnecting clients in cores, mean over the step."""
        spread_s = self._settings.reconnect_spread_s
        if self._step_s <= 0 or not (self._age_s < spread_s + self._step_s).any():
            return np.zeros(brokers)
        until_s, since_s = self._ages_within(spread_s)
        share = (until_s - since_s) / spread_s / self._step_s
        cores = self._clients * share * self._settings.reconnect_cpu_ms / 1000.0
        taken = np.bincount(owner + 1, cores, minlength=brokers + 1)
        return np.asarray(taken[1:], dtype=np.float64)

    def catch_up(self) -> FloatArray:
        if self._step_s <= 0:
            return np.zeros(len(self._waiting_s))
        return np.minimum(self._waiting_s / self._step_s, self._settings.catch_up_factor)

    def served(self, fraction: FloatArray, caught_up: FloatArray) -> None:
        """Update the backlog after a step.

        Both (K,) are multiples of the traffic: the served traffic (NaN for unserved bundles, whose
        backlog is added when their hand-over ends), and the served backlog.
        """
        left = np.nan_to_num(1.0 - fraction, nan=0.0) - caught_up
        waiting_s = self._waiting_s + left * self._step_s
        self._waiting_s = np.clip(waiting_s, 0.0, self._settings.backlog_s)

    def _ages_within(self, limit_s: float) -> tuple[FloatArray, FloatArray]:
        """Return the times since bundles arrived, at the end and the beginning of the step.

        Both are limited to the range from 0 to ``limit_s``.
        """
        begun_s = self._age_s - self._step_s
        return np.clip(self._age_s, 0.0, limit_s), np.clip(begun_s, 0.0, limit_s)


@dataclass(frozen=True, eq=False, kw_only=True)
class Moment:
    """The true state in one step, which no part of the cluster sees.

    ``wanted`` (K, 4) are the demanded rates, ``use`` is the resulting demand and usage of brokers.
    """

    wanted: FloatArray
    use: Use
    measured: Measured


class World:
    """Brokers and bundles of one scenario, step by step.

    Raises `ScenarioError`: an event shifts a namespace that is not in the trace.
    """

    def __init__(self, scenario: Scenario, trace: Trace | None, rng: np.random.Generator) -> None:
        draws_topics, draws_patterns, draws_places, draws_costs = rng.spawn(4)
        traced = tuple(trace.topics) if trace is not None else ()
        classes = scenario.brokers
        self.fleet = Fleet(classes, scenario.hidden.cpu_growth)
        self.brokers = self.fleet.brokers
        self.topics = Topics(scenario.load, traced, scenario.trace_bundles, draws_topics)
        self.bundles = self.topics.bundles
        _check_shifts(scenario, self.topics)
        self.workload = Workload(
            self.topics,
            trace,
            draws_patterns,
            interpolated=scenario.trace_interpolated,
            trace_patterns=scenario.trace_patterns,
        )
        self.policies = policies_of(scenario)
        names = self.topics.bundles
        self._confined = confinements(
            self.policies, by_namespace(names), len(names), self.fleet.brokers
        )
        self.members = Members(
            np.repeat([one.joined for one in classes], [one.count for one in classes])
        )
        self.hand_overs = HandOvers(
            fleet=self.fleet,
            topics=self.topics,
            members=self.members,
            settings=scenario.hand_over,
            holder=_first_holders(scenario, self, draws_places),
            warm_up_s=scenario.warm_up_s,
        )
        self.world_events = WorldEvents(
            fleet=self.fleet,
            members=self.members,
            hand_overs=self.hand_overs,
            workload=self.workload,
            session_timeout_s=scenario.hand_over.session_timeout_s,
        )
        self.world_events.plan(scenario.events)
        connections = self.topics.producers + self.topics.consumers
        self._things = np.stack([self.topics.topics, connections]).astype(np.float64)
        self._limit = in_report_units(self.fleet.capacity)
        clients = connections.astype(np.float64)
        self._hidden = HiddenCosts(scenario.hidden, clients, draws_costs)
        self._unmoved_owner = self.hand_overs.holder.copy()
        self._wanted = np.zeros((len(self.bundles), 4))
        self._assignable_then: Assignable | None = None

    def order(
        self, moves: Iterable[Move], now_s: float, why: Why, at_a_time: int | None = None
    ) -> None:
        """Order moves; those of unowned bundles count as placed, regardless of ``why``.

        With ``at_a_time``, only that many bundles leave a broker at once, and others after them.
        """
        rows, before = self.hand_overs.rows, Counter[int]()
        for move in moves:
            row = rows[move.bundle]
            holder = int(self.hand_overs.holder[row])
            turn = before[holder] // at_a_time if at_a_time else 0
            before[holder] += 1
            at_s = now_s + turn * self.hand_overs.turn_s
            own = why if move.source is not None else Why.PLACED
            self.hand_overs.order(move, at_s, own, self._wanted[row])

    def advance(self, now_s: float) -> Moment:
        self.world_events.advance(now_s)
        self._assignable_then = None
        self._wanted = self.workload.at(now_s)
        asked = self._wanted[:, MSGS_IN] + self._wanted[:, MSGS_OUT] > 0
        self.hand_overs.wait_from(now_s, asked)
        self._hidden.advance(now_s, self.hand_overs)
        owner = self.hand_overs.serving
        gone = (self._unmoved_owner < 0) | ~self.members.alive[self._unmoved_owner]
        self._unmoved_owner = np.where(gone, owner, self._unmoved_owner)
        use, served = self._serve(owner)
        return Moment(
            wanted=self._wanted,
            use=use,
            measured=self._measured(owner, use, self._wanted * served[:, np.newaxis]),
        )

    def bound(self) -> float:
        """Return a lower bound of the largest demand for any assignment; NaN without brokers."""
        bound = self._assignable.bound(self._confined)
        growth = self.fleet.cpu_growth
        if not growth:
            return bound
        # CPU grows faster than work, so the bound of work grows by the same function.
        cpu = self._assignable.of_resource(0).bound(self._confined)
        return max(bound, float(grown_cpu(np.array(cpu), growth)))

    def excess(self, demand: FloatArray) -> float:
        """Return the excess of brokers over their level (see `Timeline`); NaN without brokers."""
        alive = self.members.alive
        if not alive.any():
            return float("nan")
        levels = self._assignable.levels()
        levels[0] = grown_cpu(levels[:1], self.fleet.cpu_growth)[0]
        own = self.fleet.grown(self._background() / self.fleet.capacity)
        return excess_over_level(demand[alive], own[alive], float(levels.max()))

    def unmoved_cpu(self) -> FloatArray:
        """Return the demand for CPU of each broker in the same run without the moves for load.

        A bundle keeps its first owner until that broker is gone; then it gets its owner in the run,
        by a placement or a drain, and keeps it. So joins, departures, crashes and placements are
        the same.
        """
        owner, count = self._unmoved_owner, len(self.brokers)
        fixed = self.fleet.fixed(sums(owner, self._things, count), self._background())
        variable = self._variable(owner, self._wanted, self._hidden.cpu_factor)
        return self.fleet.grown((fixed + variable) / self.fleet.capacity)[:, 0]

    @property
    def _assignable(self) -> Assignable:
        if self._assignable_then is None:
            cpu_work = self._wanted * self._hidden.cpu_factor[:, np.newaxis]
            self._assignable_then = Assignable(
                cost=self.fleet.cost(self._wanted, self._things.T, cpu_work),
                background=self._background(),
                capacity=self.fleet.capacity,
                class_of=self.fleet.class_of,
                present=self.members.alive.copy(),
            )
        return self._assignable_then

    def _background(self) -> FloatArray:
        background = self.fleet.background.copy()
        background[:, 0] += self.members.noise_cores
        return background

    def _serve(self, owner: Indices) -> tuple[Use, FloatArray]:
        """Return the usage of brokers, and the served traffic of each bundle.

        The latter is a multiple of the current demand: above 1 while clients catch up.
        """
        hidden, count = self._hidden, len(self.brokers)
        fixed = self.fleet.fixed(sums(owner, self._things, count), self._background())
        factor, catch_up = hidden.cpu_factor_now(), hidden.catch_up()
        fixed[:, 0] += hidden.reconnecting_cores(owner, count)
        variable = self._variable(owner, self._wanted, factor)
        waiting = None
        if catch_up.any():
            waiting = self._variable(owner, self._wanted * catch_up[:, np.newaxis], factor)
        use = self.fleet.use(fixed, variable, waiting)
        # The last value is for unserved bundles (row -1).
        caught_up = catch_up * np.append(use.caught_up_fraction, 0.0)[owner]
        hidden.served(np.append(use.served_fraction, np.nan)[owner], caught_up)
        return use, np.append(use.served_fraction, 0.0)[owner] + caught_up

    def _variable(self, owner: Indices, work: FloatArray, factor: FloatArray) -> FloatArray:
        cpu_work = work * factor[:, np.newaxis]
        count = len(self.brokers)
        return self.fleet.variable(sums(owner, work.T, count), sums(owner, cpu_work.T, count))

    def _measured(self, owner: Indices, use: Use, rates: FloatArray) -> Measured:
        members = self.members
        return Measured(
            owner=owner,
            rates=rates,
            topics=self.topics.topics,
            producers=self.topics.producers,
            consumers=self.topics.consumers,
            usage=in_report_units(use.usage),
            limit=self._limit,
            present=members.registered.copy(),
            draining=members.draining.copy(),
            started_at_ms=members.started_at_ms.copy(),
        )


def sums(owner: Indices, columns: Sequence[FloatArray] | FloatArray, brokers: int) -> FloatArray:
    """Return (brokers, columns): sums over the bundles of each broker; -1 is no owner."""
    shifted = owner + 1
    found = [np.bincount(shifted, each, minlength=brokers + 1)[1:] for each in columns]
    return np.stack(found, axis=1)


def _check_shifts(scenario: Scenario, topics: Topics) -> None:
    unknown = {
        event.namespace
        for event in scenario.events
        if isinstance(event, Shift) and event.namespace not in topics.namespaces
    }
    if unknown:
        expected = f"expected one of {', '.join(topics.namespaces)}"
        faults = [f"{scenario.trace}: no topic in {name}; {expected}" for name in sorted(unknown)]
        raise ScenarioError(faults)


def _first_holders(scenario: Scenario, world: World, rng: np.random.Generator) -> Indices:
    """Return the initial owner of each bundle, by the first load of its namespace.

    Without ``placed_on``, all joined brokers that isolation allows are used.
    """

    def allowed(namespace: Namespace) -> Mask:
        governing = world.policies.governing(namespace)
        return open_to(world.policies, governing, world.fleet.brokers)

    topics, joined = world.topics, np.flatnonzero(world.members.alive).tolist()
    placed = {load.namespace: load for load in reversed(scenario.load)}
    holder = np.full(len(topics.bundles), NOBODY, dtype=np.intp)
    turns: dict[tuple[int, ...], int] = {}
    for namespace, rows in topics.namespaces.items():
        load = placed.get(namespace)
        free = [row for row in joined if allowed(namespace)[row]] or joined
        on = tuple(world.fleet.rows(load.placed_on) if load and load.placed_on else free)
        how = load.placed if load else "in_turn"
        count = rows.stop - rows.start
        if how == "unowned" or not on:
            continue
        if how == "random":
            holder[rows] = rng.choice(on, size=count)
        else:
            turn = turns.get(on, 0)
            holder[rows] = np.take(on, np.arange(turn, turn + count), mode="wrap")
            turns[on] = turn + count
    return holder
