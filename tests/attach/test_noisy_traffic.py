"""An hour of `attach` on traffic that varies with each window and has a constant mean."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from loadmanager.core.bundle_task import TaskEvent, advanced
from loadmanager.core.bundle_traffic import BundleTraffic
from loadmanager.core.bundles import Boundaries
from loadmanager.core.ids import BrokerId, Namespace
from loadmanager.pulsar.answers import PulsarCluster
from loadmanager.pulsar.observation import Rules, Strategy, observe
from loadmanager.pulsar.sampling import BrokerSample, HostFigures, SampledLoads

WINDOW_S = 10.0
HOUR_S = 3600.0
SETTLED_S = 600.0
CPU_AT_MEAN = 0.3
"""What a broker of one core uses of it for the mean of the rates."""

Rates = NDArray[np.float64]
Traffic = Callable[[np.random.Generator, Rates], Rates]


def noise(sd: float, bursts: float = 0.0) -> Traffic:
    """Return log-normal noise of each window; in a fraction of them a bundle has five-fold."""

    def of(rng: np.random.Generator, mean: Rates) -> Rates:
        varied = mean * np.exp(rng.normal(0.0, sd, len(mean)) - sd**2 / 2)
        return np.where(rng.random(len(mean)) < bursts, 5.0 * varied, varied)

    return of


@dataclass(slots=True)
class Cluster:
    """Brokers with these ``cores``, of which nothing is known if there are none."""

    count: int
    bundles: int
    seed: int
    cores: tuple[float, ...] = ()
    now_s: float = 0.0
    moves: list[tuple[float, int, int, int]] = field(default_factory=list)
    fullest: list[float] = field(default_factory=list)

    def run(self, traffic: Traffic, until_s: float = SETTLED_S + HOUR_S) -> "Cluster":
        """Begin with all bundles on one broker, as they are in a cluster that has just begun."""
        rng = np.random.default_rng(self.seed)
        mean = rng.lognormal(0.0, 0.5, self.bundles)
        mean *= 100.0 * self.bundles / mean.sum()
        names = Boundaries.even(Namespace("shop/orders"), self.bundles).bundles
        owner, brokers = np.zeros(self.bundles, dtype=np.intp), self.brokers
        strategy = Strategy(
            loads=SampledLoads("http://{}".format, monotonic_s=lambda: self.now_s, of_windows=True)
        )
        at = PulsarCluster(name="noisy", brokers=brokers, manager="modular")
        rests = False
        while self.now_s < until_s:
            self.now_s += WINDOW_S
            self.fullest.append(self.over_mean(mean, owner))
            rates = traffic(rng, mean)
            if rests:  # A window after moves contains what clients catch up.
                rests = False
                continue
            samples = {
                broker: self.sample(place, np.flatnonzero(owner == place), rates, names)
                for place, broker in enumerate(brokers)
            }
            known, missing = strategy.take(at, samples, {})
            seen = observe(at, known, missing, Rules(), strategy=strategy)
            strategy.record_choice()
            for one in seen.proposals:
                row, target = names.index(one.bundle), brokers.index(one.target)
                self.moves.append((self.now_s, row, int(owner[row]), target))
                owner[row] = target
                task = advanced(one, TaskEvent.ORDER_WRITTEN, self.now_s)
                strategy.task(task)
                strategy.task(advanced(task, TaskEvent.DONE, self.now_s))
            rests = bool(seen.proposals)
        return self

    @property
    def brokers(self) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(f"10.0.0.{number}:8080") for number in range(1, self.count + 1))

    def over_mean(self, mean: Rates, owner: NDArray[np.intp]) -> float:
        cores = np.array(self.cores or [1.0] * self.count)
        loads = np.bincount(owner, mean, self.count)
        return float((loads / cores).max() * cores.sum() / mean.sum())

    def sample(
        self, place: int, rows: NDArray[np.intp], rates: Rates, names: tuple[str, ...]
    ) -> BrokerSample:
        cpu = CPU_AT_MEAN * rates[rows].sum() * self.count / rates.sum() if self.cores else None
        return BrokerSample(
            window_s=WINDOW_S,
            began_s=self.now_s - WINDOW_S,
            cpu_cores=cpu,
            host=HostFigures(cpu_limit=100.0 * self.cores[place]) if self.cores else None,
            bundles={
                names[row]: BundleTraffic(
                    rates[row] / 2, rates[row] / 2, 500.0 * rates[row], 500.0 * rates[row], topics=1
                )
                for row in rows.tolist()
            },
        )

    def settled(self) -> "tuple[int, int, float]":
        """Return the moves of the hour after ten minutes, those back, and the mean fullest."""
        later = [one for one in self.moves if one[0] > SETTLED_S]
        left: dict[int, set[int]] = {}
        back = 0
        for at_s, row, source, target in self.moves:
            back += at_s > SETTLED_S and target in left.get(row, ())
            left.setdefault(row, set()).add(source)
        return len(later), back, float(np.mean(self.fullest[int(SETTLED_S / WINDOW_S) :]))


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.thorough) for seed in (2, 3))]
)
@pytest.mark.parametrize(
    ("traffic", "most"),
    [
        pytest.param(noise(0.05), 1.05, id="5 percent"),
        pytest.param(noise(0.2), 1.06, id="20 percent"),
        pytest.param(noise(0.4), 1.10, id="40 percent"),
        pytest.param(noise(0.1, bursts=0.02), 1.10, id="bursts"),
    ],
)
def test_noise_moves_nothing_once_the_cluster_is_even(
    traffic: Traffic, most: float, seed: int
) -> None:
    moves, back, fullest = Cluster(3, 32, seed).run(traffic).settled()
    assert (moves <= 2, back) == (True, 0)
    assert fullest <= most


def test_all_on_one_is_even_within_half_a_minute_of_the_first_move() -> None:
    for seed in (1, 2, 3):
        found = Cluster(3, 32, seed).run(noise(0.1), until_s=300.0)
        first_s = found.moves[0][0]
        even_s = next(WINDOW_S * k for k, one in enumerate(found.fullest, 1) if one <= 1.10)
        assert even_s - first_s <= 30.0


def test_a_broker_gets_what_its_cores_allow_from_the_first_window_and_nothing_returns() -> None:
    found = Cluster(2, 32, 1, cores=(2.0, 1.0)).run(noise(0.05), until_s=1200.0)
    assert found.fullest[-1] <= 1.10
    assert all(source == 0 for _, _, source, _ in found.moves)
    assert all(before <= after for (before, *_), (after, *_) in pairwise(found.moves))
