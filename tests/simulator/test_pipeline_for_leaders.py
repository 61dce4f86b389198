"""What leaders gain by what the pipeline found: usual traffic."""

import gzip
from collections.abc import Callable, Mapping
from statistics import median

from simulated_worlds import scenario

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.ids import BundleId
from loadmanager.core.load import LoadReport
from loadmanager.core.plan import Cause
from loadmanager.core.planner import Plan
from loadmanager.core.seed import BundleSeed, SeedHead, encode_seed, read_seed
from loadmanager.core.seeding import seeded
from loadmanager.simulator.engine import simulate
from loadmanager.simulator.run import MoveRecord, Run
from loadmanager.simulator.strategies import Strategy, planner_for

SEEDS = (1, 2, 3)


class Past:
    """A witness that keeps the last averages of a leader."""

    def __init__(self) -> None:
        self.averages: Mapping[BundleId, BundleAverages] = {}

    def reported(self, at_s: float, report: LoadReport) -> None:
        """See `Witness`."""

    def round_done(
        self,
        at_s: float,
        view: ClusterView,
        plan: Plan,
        averages: Callable[[], Mapping[BundleId, BundleAverages]],
    ) -> None:
        """Keep the averages."""
        del at_s, view, plan
        self.averages = averages()

    def moved(self, record: MoveRecord) -> None:
        """See `Witness`."""


def seed_of(past: Past) -> dict[BundleId, BundleAverages]:
    """Return what a leader takes from the file that a rollup of that past would write."""
    bundles = [
        BundleSeed(
            bundle=bundle,
            long=one.long.rates,
            long_samples=one.long.samples,
            mean=one.long.rates,
            topics=one.topics,
        )
        for bundle, one in past.averages.items()
    ]
    head = SeedHead(cluster="simulated", made_at_ms=0, since_ms=0, until_ms=0)
    packed = b"".join(encode_seed(head, bundles))
    return seeded(read_seed("seed", gzip.decompress(packed).splitlines(), 0).bundles, {})


def spread_after(run: Run, minutes: int) -> float:
    """Return how far the fullest broker is above the mean."""
    demand = run.timeline.demand[minutes].max(axis=1)
    return float(demand.max() / demand.mean())


def test_a_seeded_leader_places_bundles_as_one_that_has_been_up_for_long() -> None:
    """After a minute it stands where a cold one does not come by moving bundles for twenty."""
    pair = "threshold+least_long_term_message_rate"
    load = {
        "bundles": 200, "topics": 400, "msgs_in_per_s": 300_000.0, "over": "bundles",
        "placed": "unowned", "skew": {"kind": "log_normal", "sigma": 1.5},
    }  # fmt: skip
    played = scenario(brokers=8, load=load, duration_s=1200.0, step_s=10.0, warm_up_s=0)
    planner = planner_for(played, Strategy.parse(pair))
    cold, warm = [], []
    for seed in SEEDS:
        past = Past()
        cold.append(simulate(played, planner, strategy=pair, seed=seed, witness=past))
        warm.append(simulate(played, planner, strategy=pair, seed=seed, supposed=seed_of(past)))
    spread = median(spread_after(run, 1) for run in warm)
    assert spread < 1.25
    assert spread < 0.7 * median(spread_after(run, 1) for run in cold)
    assert spread < 0.9 * median(spread_after(run, 20) for run in cold)
    shed = [one for run in warm for one in run.moves if one.cause is not Cause.UNOWNED]
    assert not shed
