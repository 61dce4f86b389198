"""One simulation, step by step: the world advances, agents measure it, the leader decides."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.config.sections import LeaderSettings
from loadmanager.core.absences import AbsenceRules, Absences, Drains
from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.columns import Indices
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load_tracker import LoadTracker
from loadmanager.core.plan import Cause, Move, Reason
from loadmanager.core.planner import EARLY_ROUND_S, NONE_LEAVE, Plan, Planner
from loadmanager.core.playback import Playback
from loadmanager.core.policies import NO_POLICIES, Policies
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.shedding import Deciding
from loadmanager.simulator.agents import Agents, Reported
from loadmanager.simulator.results import Floats, Run, Timeline, Why, Witness
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.traces import read_trace
from loadmanager.simulator.world import Moment, World, sums


class Leader:
    """Decides only by the reports of agents.

    The caller passes the bundles ``in_flight``: ordered, and not served by the target yet. A bundle
    counts as in flight until the report of the target lists it. Brokers that vanish within
    ``session_s``, the session timeout, count as gone together.

    ``view`` is the view of the last round.
    """

    def __init__(
        self,
        agents: Agents,
        planner: Planner,
        settings: LeaderSettings,
        rng: np.random.Generator,
        *,
        session_s: float,
        policies: Policies = NO_POLICIES,
    ) -> None:
        self._policies = policies
        self._agents = agents
        self.playback = Playback(planner, rng)
        self.tracker = LoadTracker(weights=planner.weights)
        self._absences = Absences()
        self._absence_rules = AbsenceRules(
            return_wait_s=settings.return_wait_s,
            max_lost_fraction=planner.settings.max_lost_fraction,
            session_s=session_s,
        )
        self._broker_rows = {broker: row for row, broker in enumerate(agents.brokers)}
        self._bundle_rows = {bundle: row for row, bundle in enumerate(agents.bundles)}
        self._last_planned: Indices = np.full(len(agents.bundles), -1, dtype=np.intp)
        self._planned = self._last_planned
        self._reports: dict[int, Reported] = {}
        self.view = self.tracker.view(0.0)

    def tick(self, now_s: float) -> None:
        self._take(now_s)
        self.tracker.sample()
        self._plan(NONE_LEAVE)

    def round(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], unowned: Sequence[BundleId] = ()
    ) -> Plan:
        """Return the decision of one round; it does not drain brokers."""
        waiting = self._follow(now_s, in_flight, unowned)
        view = self._seen(now_s, frozenset(unowned))
        placed = [bundle for bundle in unowned if bundle not in waiting]
        self.view = view
        return self.playback.round(view, unowned=placed)

    def due_early(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], unowned: Sequence[BundleId]
    ) -> bool:
        self._follow(now_s, in_flight, unowned)
        seen, playback = self._seen(now_s, frozenset(unowned)), self.playback
        return playback.planner.due_early(seen, playback.memory)

    def place(
        self,
        now_s: float,
        bundles: Collection[BundleId],
        in_flight: Mapping[BundleId, BrokerId],
        leaving: Mapping[BundleId, BrokerId] = NONE_LEAVE,
        cause: Cause = Cause.UNOWNED,
    ) -> list[Move]:
        """Return moves for the bundles that are placed between rounds.

        No bundle goes to the broker that it is ``leaving`` because of ``cause``. An unowned bundle
        that waits for the return of its broker is not placed.
        """
        unowned = [bundle for bundle in bundles if bundle not in leaving]
        waiting = self._follow(now_s, in_flight, unowned)
        wanted = [bundle for bundle in bundles if bundle not in waiting]
        if not wanted:
            return []
        view = self._seen(now_s, frozenset(bundles))
        return self.playback.place(view, wanted, leaving, cause)[0]

    def draining(self, now_s: float) -> tuple[BrokerId, ...]:
        self._take(now_s)
        reports = (report for _, report in sorted(self._reports.items()))
        return tuple(report.broker for report in reports if report.draining)

    def _take(self, now_s: float) -> None:
        for news in self._agents.news(now_s):
            if isinstance(news, Reported):
                self.tracker.put(news.load())
                self._reports[news.row] = news
            else:
                self.tracker.forget(news.broker, news.seen_s)
                self._reports.pop(news.row, None)

    def _follow(
        self, now_s: float, in_flight: Mapping[BundleId, BrokerId], unowned: Sequence[BundleId]
    ) -> frozenset[BundleId]:
        """Process reports and orders; return the bundles that wait for the return of a broker."""
        self._take(now_s)
        self._plan(in_flight)
        orphans: dict[BundleId, BrokerId] = {}
        for bundle in unowned:
            planned = int(self._last_planned[self._bundle_rows[bundle]])
            if planned >= 0 and planned not in self._reports:
                orphans[bundle] = self._agents.brokers[planned]
        absent = set(orphans.values())
        self._absences.observe(now_s, absent, self.tracker.brokers, self._absence_rules)
        until_s = self._absences.awaited_until_s
        return frozenset(
            bundle for bundle, broker in orphans.items() if until_s.get(broker, 0.0) > now_s
        )

    def _plan(self, in_flight: Mapping[BundleId, BrokerId]) -> None:
        self._planned = self._agents.owner.copy()
        for bundle, target in in_flight.items():
            self._planned[self._bundle_rows[bundle]] = self._broker_rows[target]
        self._last_planned = np.where(self._planned >= 0, self._planned, self._last_planned)

    def _seen(self, now_s: float, afresh: frozenset[BundleId]) -> ClusterView:
        """Return the current view; bundles to be placed ``afresh`` count as unowned."""
        names, brokers = self._agents.bundles, self._agents.brokers
        planned = {
            names[row]: brokers[self._planned[row]]
            for row in self._under_way().tolist()
            if names[row] not in afresh
        }
        return self.tracker.view(now_s, in_flight=planned, policies=self._policies)

    def _under_way(self) -> Indices:
        """Return the rows of bundles that the report of their planned owner does not list."""
        if not self._reports:
            return np.zeros(0, dtype=np.intp)
        listed = np.concatenate([report.rows for report in self._reports.values()])
        counts = [len(report.rows) for report in self._reports.values()]
        by = np.repeat(np.array(list(self._reports), dtype=np.intp), counts)
        reports = np.zeros(len(self._agents.brokers) + 1, dtype=np.bool_)
        reports[list(self._reports)] = True  # The last one is for unowned bundles (row -1).
        away = reports[self._planned]
        away[listed[self._planned[listed] == by]] = False
        return np.flatnonzero(away)


@dataclass(slots=True, kw_only=True)
class Emptying:
    """Selects the bundles that leave draining brokers, as the leader of a sidecar does.

    At most ``at_a_time`` bundles of a broker are in flight at any moment. If a step is longer than
    a hand-over, one call selects as many as can be moved within the step.
    """

    world: World
    at_a_time: int
    step_s: float
    _drains: Drains = field(default_factory=Drains)

    def due(self, draining: Sequence[BrokerId], now_s: float) -> Mapping[BundleId, BrokerId]:
        """Return the bundles that leave these brokers now, with their brokers."""
        hand_overs = self.world.hand_overs
        leaving, turn_s = Counter(hand_overs.sources), hand_overs.turn_s
        turns = max(int(self.step_s / turn_s), 1) if turn_s > 0 else len(self.world.bundles)
        rows = {broker: self.world.brokers.index(broker) for broker in draining}
        most = {
            broker: max(self.at_a_time - leaving[row], 0) * turns for broker, row in rows.items()
        }
        held = (
            (self.world.bundles[one], broker)
            for broker, row in rows.items()
            for one in hand_overs.held_by(row).tolist()
        )
        staying = (one for one in held if one[0] not in hand_overs.under_way)
        return self._drains.due(staying, most, now_s)

    def refused(self, bundles: Collection[BundleId], now_s: float) -> None:
        self._drains.refused(bundles, now_s)


RECORD_EVERY_S: Final = 60.0


class Recorder:
    def __init__(self, world: World) -> None:
        self._world = world
        self._next_s = 0.0
        self._times_s: list[float] = []
        self._rows: list[dict[str, Floats]] = []

    def look(self, now_s: float, moment: Moment) -> None:
        if now_s < self._next_s:
            return
        self._next_s = (now_s // RECORD_EVERY_S + 1) * RECORD_EVERY_S
        self._times_s.append(now_s)
        self._rows.append(self._row(moment))

    def timeline(self) -> Timeline:
        columns: dict[str, Any] = {
            name: np.stack([row[name] for row in self._rows]) for name in self._rows[0]
        }
        columns["bundles"] = columns["bundles"].astype(np.int32)
        return Timeline(time_s=np.array(self._times_s), brokers=self._world.brokers, **columns)

    def _row(self, moment: Moment) -> dict[str, Floats]:
        world, measured, use = self._world, moment.measured, moment.use
        alive = world.members.alive
        absent = np.where(alive, 0.0, np.nan)[:, np.newaxis]
        served = sums(measured.owner, measured.rates.T, len(alive))
        wanted = moment.wanted[:, MSGS_IN] + moment.wanted[:, MSGS_OUT]
        row = {
            "demand": use.demand + absent,
            "bytes_per_s": served[:, BYTES_IN] + served[:, BYTES_OUT],
            "bundles": np.bincount(measured.owner + 1, minlength=len(alive) + 1)[1:],
            "bound": np.array(world.bound()),
            "unowned_msgs_per_s": np.array(wanted[measured.owner < 0].sum()),
            "excess": np.array(world.excess(use.demand)),
            "unmoved_cpu": world.unmoved_cpu() + absent[:, 0],
        }
        return {name: np.asarray(value, dtype=np.float32) for name, value in row.items()}


_ROUNDING_S: Final = 1e-6
"""Tolerance of comparisons of times: multiples of a step are not exact."""


def simulate(
    scenario: Scenario,
    planner: Planner,
    *,
    seed: int,
    witness: Witness | None = None,
    supposed: Mapping[BundleId, BundleAverages] = MappingProxyType({}),
) -> Run:
    """Return the run of ``scenario`` with ``planner`` as its leader's.

    The same arguments give the same run to the last bit. Each step, in this order: the
    events of brokers and bundles until now; the agents measure and publish; the leader
    takes a sample (if a tick is due), places bundles with waiting clients, drains
    brokers, and does a round (if one is due); the ordered moves begin.

    ``seed`` is of all random numbers, in place of the scenario's; ``supposed`` are averages that
    the leader loads from a seed file at its start. Raises `ScenarioError`: the scenario's trace
    cannot be read, or lacks what an event shifts.
    """
    simulation = _Simulation(scenario, planner, seed, witness)
    simulation.leader.tracker.suppose(supposed)
    steps = int((scenario.duration_s + _ROUNDING_S) / scenario.step_s)
    for number in range(steps + 1):
        simulation.step(number * scenario.step_s)
    return simulation.run()


@dataclass(slots=True)
class _Timer:
    every_s: float
    count: int = 0

    def due(self, now_s: float) -> bool:
        if now_s + _ROUNDING_S < (self.count + 1) * self.every_s:
            return False
        self.count = int((now_s + _ROUNDING_S) / self.every_s)
        return True


class _Simulation:
    def __init__(
        self, scenario: Scenario, planner: Planner, seed: int, witness: Witness | None
    ) -> None:
        seeds = np.random.SeedSequence(seed).spawn(3)
        for_world, for_agents, for_leader = (np.random.default_rng(one) for one in seeds)
        trace = None if scenario.trace is None else read_trace(scenario.trace)
        self.scenario = scenario
        self.planner = planner
        self.witness = witness
        self.world = world = World(scenario, trace, for_world)
        self.agents = Agents(
            world.brokers, world.bundles, scenario.report, scenario.noise, for_agents
        )
        self.leader = Leader(
            self.agents,
            planner,
            scenario.leader,
            for_leader,
            policies=world.policies,
            session_s=scenario.hand_over.session_timeout_s,
        )
        at_a_time = max(planner.settings.in_flight_per_broker, 1)
        self.emptying = Emptying(world=world, at_a_time=at_a_time, step_s=scenario.step_s)
        self.recorder = Recorder(world)
        self.ticks = _Timer(scenario.leader.tick_interval_s)
        self.rounds = _Timer(scenario.leader.round_interval_s)
        self.now_s = self.looked_s = 0.0
        self.rounds_done = self.reported = 0
        self.refusals: Counter[Reason] = Counter()

    def step(self, now_s: float) -> None:
        self.now_s = now_s
        world = self.world
        moment = world.advance(now_s)
        for rows, until_s in world.world_events.silences:
            self.agents.silence(rows, until_s)
        world.world_events.silences.clear()
        published = self.agents.sample(now_s, moment.measured)
        if self.witness is not None:
            for one in published:
                self.witness.reported(one.at_s, one.report())
        if self.ticks.due(now_s):
            self.leader.tick(now_s)
        if unowned := world.hand_overs.unowned():
            moves = self.leader.place(now_s, unowned, world.hand_overs.under_way)
            world.order(moves, now_s, Why.PLACED)
        self._empty(now_s)
        if self.rounds.due(now_s) or self._due_early(now_s):
            self._round(now_s)
        self._report_moves()
        self.recorder.look(now_s, moment)

    def run(self) -> Run:
        world, scenario = self.world, self.scenario
        world.hand_overs.finish(self.now_s)
        self._report_moves()
        return Run(
            warm_up_s=scenario.warm_up_s,
            duration_s=scenario.duration_s,
            timeline=self.recorder.timeline(),
            moves=tuple(sorted(world.hand_overs.records, key=lambda one: one.at_s)),
            rounds=self.rounds_done,
            refusals={reason.value: count for reason, count in sorted(self.refusals.items())},
            interrupted_client_s=world.hand_overs.interrupted_client_s,
            interrupted_in_warm_up_client_s=world.hand_overs.interrupted_in_warm_up_client_s,
            happened=tuple(world.world_events.texts),
        )

    def _empty(self, now_s: float) -> None:
        leaving = self.emptying.due(self.leader.draining(now_s), now_s)
        if not leaving:
            return
        in_flight = self.world.hand_overs.under_way
        moves = self.leader.place(now_s, tuple(leaving), in_flight, leaving, Cause.DRAINING)
        going = {move.bundle for move in moves}
        self.emptying.refused([bundle for bundle in leaving if bundle not in going], now_s)
        self.world.order(moves, now_s, Why.DRAINED, self.emptying.at_a_time)

    def _due_early(self, now_s: float) -> bool:
        if now_s < self.looked_s + EARLY_ROUND_S - _ROUNDING_S:
            return False
        self.looked_s = now_s
        hand_overs = self.world.hand_overs
        return self.leader.due_early(now_s, hand_overs.under_way, hand_overs.unowned())

    def _round(self, now_s: float) -> None:
        self.looked_s = now_s
        hand_overs = self.world.hand_overs
        plan = self.leader.round(now_s, hand_overs.under_way, hand_overs.unowned())
        self.rounds_done += 1
        self.refusals.update(refusal.reason for refusal in plan.refusals)
        at_a_time = self.emptying.at_a_time if isinstance(self.planner.shedder, Deciding) else None
        self.world.order(plan.moves, now_s, Why.SHED, at_a_time)
        if self.witness is not None:
            self.witness.round_done(now_s, self.leader.view, plan, self.leader.tracker.averages)

    def _report_moves(self) -> None:
        records = self.world.hand_overs.records
        if self.witness is not None:
            for record in records[self.reported :]:
                self.witness.moved(record)
        self.reported = len(records)
