"""One simulation, step by step: the world advances, agents measure it, the leader decides."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import BundleAverages
from loadmanager.core.ids import BundleId
from loadmanager.core.plan import Cause, Reason
from loadmanager.core.planner import EARLY_ROUND_S, Planner
from loadmanager.core.rates import BYTES_IN, BYTES_OUT, MSGS_IN, MSGS_OUT
from loadmanager.core.shedding import Deciding
from loadmanager.simulator.agents import Agents
from loadmanager.simulator.leader import Emptying, Leader
from loadmanager.simulator.run import Floats, Run, Timeline, Why, Witness
from loadmanager.simulator.scenario import Scenario
from loadmanager.simulator.traces import read_trace
from loadmanager.simulator.world import Moment, World, sums


class Recorder:
    def __init__(self, world: World, every_s: float) -> None:
        self._world = world
        self._every_s = every_s
        self._next_s = 0.0
        self._times_s: list[float] = []
        self._rows: list[dict[str, Floats]] = []

    def look(self, now_s: float, moment: Moment) -> None:
        if now_s < self._next_s:
            return
        self._next_s = (now_s // self._every_s + 1) * self._every_s
        self._times_s.append(now_s)
        self._rows.append(self._row(moment))

    def timeline(self) -> Timeline:
        columns: dict[str, Any] = {
            name: np.stack([row[name] for row in self._rows]) for name in self._rows[0]
        }
        columns["present"] = columns["present"] > 0
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
            "served": use.usage / world.fleet.capacity + absent,
            "present": alive,
            "msgs_per_s": served[:, MSGS_IN] + served[:, MSGS_OUT],
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
    strategy: str,
    seed: int,
    witness: Witness | None = None,
    record_every_s: float = 60.0,
    supposed: Mapping[BundleId, BundleAverages] = MappingProxyType({}),
) -> Run:
    """Return the run of ``scenario`` with ``planner`` as its leader's.

    The same arguments give the same run to the last bit. Each step, in this order: the
    events of brokers and bundles until now; the agents measure and publish; the leader
    takes a sample (if a tick is due), places bundles with waiting clients, drains
    brokers, and does a round (if one is due); the ordered moves begin.

    Args:
        scenario: what is simulated.
        planner: the strategies, as they would run in a sidecar.
        strategy: the name of the strategies in the run.
        seed: seed of all random numbers, in place of that of the scenario.
        witness: receives what a real leader and agents would record, if given.
        record_every_s: interval of the moments of the timeline, at least a step.
        supposed: the averages that the leader loads from a seed file at its start.

    Raises:
        ScenarioError: the scenario's trace cannot be read, or lacks what an event shifts.
    """
    simulation = _Simulation.of(scenario, planner, seed, witness, record_every_s)
    simulation.leader.tracker.suppose(supposed)
    steps = int((scenario.duration_s + _ROUNDING_S) / scenario.step_s)
    for number in range(steps + 1):
        simulation.step(number * scenario.step_s)
    return simulation.run(strategy, seed)


@dataclass(slots=True)
class _Timer:
    every_s: float
    count: int = 0

    def due(self, now_s: float) -> bool:
        if now_s + _ROUNDING_S < (self.count + 1) * self.every_s:
            return False
        self.count = int((now_s + _ROUNDING_S) / self.every_s)
        return True


@dataclass(slots=True, kw_only=True)
class _Simulation:
    scenario: Scenario
    planner: Planner
    world: World
    agents: Agents
    leader: Leader
    emptying: Emptying
    recorder: Recorder
    witness: Witness | None
    ticks: _Timer
    rounds: _Timer
    now_s: float = 0.0
    looked_s: float = 0.0
    rounds_done: int = 0
    refusals: Counter[Reason] = field(default_factory=Counter)
    reported: int = 0

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        planner: Planner,
        seed: int,
        witness: Witness | None,
        record_every_s: float,
    ) -> "_Simulation":
        seeds = np.random.SeedSequence(seed).spawn(3)
        for_world, for_agents, for_leader = (np.random.default_rng(one) for one in seeds)
        trace = None if scenario.trace is None else read_trace(scenario.trace)
        world = World(scenario, trace, for_world)
        agents = Agents(world.brokers, world.bundles, scenario.report, scenario.noise, for_agents)
        return cls(
            scenario=scenario,
            planner=planner,
            world=world,
            agents=agents,
            leader=Leader(
                agents,
                planner,
                scenario.leader,
                for_leader,
                policies=world.policies,
                session_s=scenario.hand_over.session_timeout_s,
            ),
            emptying=Emptying(
                world=world,
                at_a_time=max(planner.settings.in_flight_per_broker, 1),
                step_s=scenario.step_s,
            ),
            recorder=Recorder(world, record_every_s),
            witness=witness,
            ticks=_Timer(scenario.leader.tick_interval_s),
            rounds=_Timer(scenario.leader.round_interval_s),
        )

    def step(self, now_s: float) -> None:
        self.now_s = now_s
        world = self.world
        moment = world.advance(now_s)
        for silenced in world.world_events.silences:
            self.agents.silence(silenced.rows, silenced.until_s)
        world.world_events.silences.clear()
        published = self.agents.sample(now_s, moment.measured)
        if self.witness is not None:
            for one in published:
                self.witness.reported(one.at_s, one.report())
        if self.ticks.due(now_s):
            self.leader.tick(now_s)
        self._place(now_s)
        self._empty(now_s)
        if self.rounds.due(now_s) or self._due_early(now_s):
            self._round(now_s)
        self._report_moves()
        self.recorder.look(now_s, moment)

    def run(self, strategy: str, seed: int) -> Run:
        world, scenario = self.world, self.scenario
        world.hand_overs.finish(self.now_s)
        self._report_moves()
        return Run(
            scenario=scenario.title,
            strategy=strategy,
            mode=self.planner.settings.mode.value,
            seed=seed,
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

    def _place(self, now_s: float) -> None:
        unowned = self.world.unowned
        if unowned:
            moves = self.leader.place(now_s, unowned, self.world.in_flight)
            self.world.order(moves, now_s, Why.PLACED)

    def _empty(self, now_s: float) -> None:
        leaving = self.emptying.due(self.leader.draining(now_s), now_s)
        if not leaving:
            return
        moves = self.leader.place(
            now_s, tuple(leaving), self.world.in_flight, leaving, Cause.DRAINING
        )
        going = {move.bundle for move in moves}
        self.emptying.refused([bundle for bundle in leaving if bundle not in going], now_s)
        self.world.order(moves, now_s, Why.DRAINED, self.emptying.at_a_time)

    def _due_early(self, now_s: float) -> bool:
        if now_s < self.looked_s + EARLY_ROUND_S - _ROUNDING_S:
            return False
        self.looked_s = now_s
        return self.leader.due_early(now_s, self.world.in_flight, self.world.unowned)

    def _round(self, now_s: float) -> None:
        self.looked_s = now_s
        plan = self.leader.round(now_s, self.world.in_flight, self.world.unowned)
        self.rounds_done += 1
        self.refusals.update(refusal.reason for refusal in plan.refusals)
        at_a_time = self.emptying.at_a_time if isinstance(self.planner.shedder, Deciding) else None
        self.world.order(plan.moves, now_s, Why.SHED, at_a_time)
        if self.witness is not None:
            self.witness.round_done(now_s, self.leader.view, plan, lambda: self.leader.averages)

    def _report_moves(self) -> None:
        records = self.world.hand_overs.records
        if self.witness is not None:
            for record in records[self.reported :]:
                self.witness.moved(record)
        self.reported = len(records)
