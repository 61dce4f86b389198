"""How far a simulated run and a real one of the same scenario are apart."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, pstdev
from typing import Final

import numpy as np
from live_scenario import ROUNDS, LiveRun, Step, bundle_of
from simulated_worlds import Told, run

from loadmanager.config.strategies import own_placement
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Reason
from loadmanager.core.planner import Plan
from loadmanager.core.shedding import SHEDDERS
from loadmanager.simulator.scenario import NoiseSettings, Scenario

CALIBRATED_S: Final = 6.0
"""The seconds before the leader may move from which cost and noise are taken."""

FINAL_S: Final = 6.0
CPU: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One run, real or simulated; brokers by name.

    ``loads`` are the CPU usages as fractions, one mapping for each settled second half
    of a round, the first one before anything moved. ``final`` is their mean at the end,
    and ``traffic`` the share of all messages that each broker has then.
    """

    steps: tuple[Step, ...]
    loads: tuple[Mapping[str, float], ...]
    final: Mapping[str, float]
    traffic: Mapping[str, float]

    @property
    def max_over_mean(self) -> float:
        return max(self.final.values()) / fmean(self.final.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """What two stories differ by; loads and traffic in points, 1 is a hundredth of a broker.

    ``same_prefix`` are the first moves that are the same in both, ``edits`` how many
    moves must be put in, taken out or replaced to make one sequence the other, and
    ``rounds_apart`` is the largest distance in time of two moves of the prefix.
    """

    moves_live: int
    moves_simulated: int
    same_prefix: int
    edits: int
    rounds_apart: int
    load_points_mean: float
    load_points_most: float
    final_points_most: float
    traffic_points_most: float
    max_over_mean_live: float
    max_over_mean_simulated: float

    def to_json(self) -> dict[str, float]:
        return asdict(self)


class Rounds(Told):
    """The witness of a simulation: what each round decided that was allowed to move anything."""

    @property
    def decided(self) -> list[tuple[float, Plan]]:
        """The rounds but those in which the set of brokers had to settle first."""
        return [
            (at_s, plan)
            for at_s, _, plan in self.rounds
            if not any(one.reason is Reason.MEMBERSHIP_CHANGING for one in plan.refusals)
        ]

    @property
    def steps(self) -> list[Step]:
        return [
            Step(
                round=number,
                bundle=move.bundle,
                source=_name(move.source or move.target),
                target=_name(move.target),
            )
            for number, (_, plan) in enumerate(self.decided, 1)
            for move in plan.moves
        ]


def calibrated(scenario: Scenario, live: LiveRun) -> Scenario:
    """Return the scenario with what a live run showed before the leader might move anything.

    Cost: the CPU that a broker spends on a message and without any, by least squares
    over brokers. Noise: the deviation of usage and of rates from look to look, all
    brokers' and bundles' together, relative to their sums. Everything later is predicted.
    """
    looks = [look for look in live.looks if -CALIBRATED_S <= look.at_s < 0]
    (brokers,) = scenario.brokers
    usage = {
        name: [k.cpu_fraction[name] * brokers.cores for k in looks] for name in brokers.brokers
    }
    asked = asked_of(scenario, looks[-1].owners)
    terms = [[asked[name] * 1e-6, 1.0] for name in usage]
    fit, *_ = np.linalg.lstsq(terms, [fmean(one) for one in usage.values()], rcond=None)
    cpu_us_per_msg, idle_cores = (max(0.0, float(one)) for one in fit)
    rates = [
        [look.served[name][bundle] for look in looks]
        for bundle, name in looks[-1].owners.items()
        if all(bundle in look.served[name] for look in looks)
    ]
    measured = brokers.model_copy(
        update={
            "cost": brokers.cost.model_copy(update={"cpu_us_per_msg": cpu_us_per_msg}),
            "background": brokers.background.model_copy(update={"cores": idle_cores}),
        }
    )
    noise = NoiseSettings(
        usage_fraction=_deviation(list(usage.values())),
        rate_fraction=_deviation(rates),
        delay_s=scenario.noise.delay_s,
    )
    return scenario.model_copy(update={"brokers": (measured,), "noise": noise})


def without_noise(scenario: Scenario) -> Scenario:
    exact = NoiseSettings(usage_fraction=0.0, rate_fraction=0.0, delay_s=scenario.noise.delay_s)
    return scenario.model_copy(update={"noise": exact})


def simulated(scenario: Scenario, seed: int) -> Story:
    shedder = scenario.shedding.strategy
    pair = f"{shedder}+{scenario.placement.strategy or own_placement(SHEDDERS[shedder])}"
    rounds = Rounds()
    timeline = run(scenario, pair, seed, witness=rounds, record_every_s=scenario.step_s).timeline
    interval_s = scenario.leader.round_interval_s
    first_s = rounds.decided[0][0]
    usage = timeline.served[:, :, CPU]

    def between(begin_s: float, end_s: float) -> dict[str, float]:
        moments = (timeline.time_s >= begin_s) & (timeline.time_s < end_s)
        means = usage[moments].mean(axis=0).tolist()
        return {_name(b): mean for b, mean in zip(timeline.brokers, means, strict=True)}

    return _story(scenario, rounds.steps, between, first_s, interval_s)


def lived(scenario: Scenario, live: LiveRun) -> Story:
    def between(begin_s: float, end_s: float) -> dict[str, float]:
        looks = [look.cpu_fraction for look in live.looks if begin_s <= look.at_s < end_s]
        return {name: fmean(look[name] for look in looks) for name in looks[0]}

    return _story(scenario, live.steps, between, live.first_round_s, live.interval_s)


def compared(live: Story, simulated: Story) -> Difference:
    ways = [step.way for step in live.steps], [step.way for step in simulated.steps]
    same = common_prefix(*ways)
    pairs = list(zip(live.steps, simulated.steps, strict=False))[:same]
    apart = [
        [abs(one[name] - other[name]) for name in one]
        for one, other in zip(live.loads, simulated.loads, strict=True)
    ]
    return Difference(
        moves_live=len(live.steps),
        moves_simulated=len(simulated.steps),
        same_prefix=same,
        edits=edit_distance(*ways),
        rounds_apart=max((abs(one.round - other.round) for one, other in pairs), default=0),
        load_points_mean=100 * fmean(map(fmean, apart)),
        load_points_most=100 * max(map(max, apart)),
        final_points_most=100 * _most_apart(live.final, simulated.final),
        traffic_points_most=100 * _most_apart(live.traffic, simulated.traffic),
        max_over_mean_live=live.max_over_mean,
        max_over_mean_simulated=simulated.max_over_mean,
    )


def common_prefix(one: Sequence[object], other: Sequence[object]) -> int:
    pairs = zip(one, other, strict=False)
    return next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def edit_distance(one: Sequence[object], other: Sequence[object]) -> int:
    row = list(range(len(other) + 1))
    for number, item in enumerate(one, start=1):
        before, row = row, [number]
        for column, its in enumerate(other):
            row.append(min(before[column] + (item != its), before[column + 1] + 1, row[-1] + 1))
    return row[-1]


def asked_of(scenario: Scenario, owners: Mapping[BundleId, str]) -> dict[str, float]:
    (brokers,) = scenario.brokers
    found = dict.fromkeys(brokers.brokers, 0.0)
    for load in scenario.load:
        found[owners[bundle_of(load)]] += load.msgs_in_per_s
    return found


def _story(
    scenario: Scenario,
    steps: Iterable[Step],
    between: Callable[[float, float], Mapping[str, float]],
    first_s: float,
    interval_s: float,
) -> Story:
    """Return a run's story; ``between`` tells the mean loads from one time to another."""
    kept = tuple(step for step in steps if step.round <= ROUNDS)
    owners = {bundle_of(load): load.placed_on[0] for load in scenario.load}
    owners |= {step.bundle: step.target for step in kept}
    asked = asked_of(scenario, owners)
    begins_s = [first_s + number * interval_s for number in range(-1, ROUNDS)]
    end_s = first_s + ROUNDS * interval_s
    return Story(
        steps=kept,
        loads=tuple(between(one + interval_s / 2, one + interval_s) for one in begins_s),
        final=between(end_s - FINAL_S, end_s),
        traffic={name: rate / sum(asked.values()) for name, rate in asked.items()},
    )


def _most_apart(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    return max(abs(one[name] - other[name]) for name in one)


def _deviation(series: Sequence[Sequence[float]]) -> float:
    return sum(map(pstdev, series)) / sum(map(fmean, series))


def _name(broker: BrokerId) -> str:
    return broker.partition(":")[0]
