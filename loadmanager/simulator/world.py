"""The modelled world: capacity and costs of brokers, and the demand of clients."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from loadmanager.core.columns import Indices, Mask
from loadmanager.core.ids import BrokerId, BundleId, Namespace
from loadmanager.core.optimality import Assignable, by_namespace, confinements, excess_over_level
from loadmanager.core.plan import Move
from loadmanager.core.policies import Policies, open_to
from loadmanager.core.rates import MSGS_IN, MSGS_OUT
from loadmanager.core.scores import FloatArray
from loadmanager.simulator.errors import ScenarioError
from loadmanager.simulator.fleet import Fleet, Use, grown_cpu, in_report_units
from loadmanager.simulator.hand_overs import NOBODY, HandOvers, Members, Unmoved
from loadmanager.simulator.hidden_costs import HiddenCosts
from loadmanager.simulator.measured import Measured
from loadmanager.simulator.run import Why
from loadmanager.simulator.scenario.brokers import BrokerClass
from loadmanager.simulator.scenario.events import Shift
from loadmanager.simulator.scenario.model import Scenario
from loadmanager.simulator.scenario.policies import policies_of
from loadmanager.simulator.topics import Topics
from loadmanager.simulator.traces import Trace
from loadmanager.simulator.workload import Workload
from loadmanager.simulator.world_events import WorldEvents


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

    Args:
        scenario: what is simulated.
        trace: recorded rates to replay, None for none.
        rng: draws sizes of topics, patterns and random owners.

    Raises:
        ScenarioError: an event shifts a namespace that is not in the trace.
    """

    def __init__(self, scenario: Scenario, trace: Trace | None, rng: np.random.Generator) -> None:
        draws_topics, draws_patterns, draws_places, draws_costs = rng.spawn(4)
        traced = tuple(trace.topics) if trace is not None else ()
        self.fleet = Fleet.of(scenario.brokers, scenario.hidden.cpu_growth)
        self.topics = Topics.of(scenario.load, traced, scenario.trace_bundles, draws_topics)
        _check_shifts(scenario, self.topics)
        self.workload = Workload(
            self.topics,
            trace,
            draws_patterns,
            interpolated=scenario.trace_interpolated,
            trace_patterns=scenario.trace_patterns,
        )
        self.policies = _policies(scenario, self.fleet)
        names = self.topics.bundles
        self._confined = confinements(
            self.policies, by_namespace(names), len(names), self.fleet.brokers
        )
        self.members = Members(_joined(scenario.brokers))
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
        self._unmoved = Unmoved(self.hand_overs.holder)
        self._wanted = np.zeros((len(self.bundles), 4))
        self._assignable_then: Assignable | None = None

    @property
    def brokers(self) -> tuple[BrokerId, ...]:
        return self.fleet.brokers

    @property
    def bundles(self) -> tuple[BundleId, ...]:
        return self.topics.bundles

    @property
    def in_flight(self) -> Mapping[BundleId, BrokerId]:
        return self.hand_overs.under_way

    @property
    def unowned(self) -> list[BundleId]:
        return self.hand_overs.unowned()

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
            self.hand_overs.order(
                move.bundle,
                move.target,
                now_s,
                why=why if move.source is not None else Why.PLACED,
                cause=move.cause,
                rates=self._wanted[row],
                after_s=turn * self.hand_overs.turn_s,
            )

    def advance(self, now_s: float) -> Moment:
        self.world_events.advance(now_s)
        self._assignable_then = None
        self._wanted = self.workload.at(now_s)
        asked = self._wanted[:, MSGS_IN] + self._wanted[:, MSGS_OUT] > 0
        self.hand_overs.wait_from(now_s, asked)
        self._hidden.advance(now_s, self.hand_overs)
        self._unmoved_owner = self._unmoved.owner(self.hand_overs)
        owner = self.hand_overs.serving
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


def _policies(scenario: Scenario, fleet: Fleet) -> Policies:
    classes = [
        (group, [fleet.brokers[row] for row in fleet.rows([group.name])])
        for group in scenario.brokers
    ]
    return policies_of(scenario.isolation, scenario.load, classes)


def _joined(classes: Sequence[BrokerClass]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    return np.repeat([group.joined for group in classes], [group.count for group in classes])


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
