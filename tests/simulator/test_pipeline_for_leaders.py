"""What leaders gain by what the pipeline found: usual traffic."""

import gzip
from collections.abc import Mapping
from statistics import median

from simulated_worlds import Told, run, scenario

from loadmanager.core.averages import BundleAverages
from loadmanager.core.ids import BundleId
from loadmanager.core.plan import Cause
from loadmanager.core.seed import BundleSeed, SeedHead, encode_seed, read_seed, seeded
from loadmanager.simulator.results import Run

SEEDS = (1, 2, 3)


def seed_of(averages: Mapping[BundleId, BundleAverages]) -> dict[BundleId, BundleAverages]:
    """Return what a leader takes from the file that a rollup of that past would write."""
    bundles = [
        BundleSeed(
            bundle=bundle,
            long=one.long.rates,
            long_samples=one.long.samples,
            mean=one.long.rates,
            topics=one.topics,
        )
        for bundle, one in averages.items()
    ]
    head = SeedHead(cluster="simulated", made_at_ms=0, since_ms=0, until_ms=0)
    packed = b"".join(encode_seed(head, bundles))
    return seeded(read_seed("seed", gzip.decompress(packed).splitlines(), 0).bundles, {})


def spread_after(run: Run, minutes: int) -> float:
    demand = run.timeline.demand[minutes].max(axis=1)
    return float(demand.max() / demand.mean())


def test_a_seeded_leader_places_bundles_as_one_that_has_been_up_for_long() -> None:
    # After a minute it stands where a cold one does not come by moving bundles for twenty.
    load = {
        "bundles": 200, "topics": 400, "msgs_in_per_s": 300_000.0, "over": "bundles",
        "placed": "unowned", "skew": {"kind": "log_normal", "sigma": 1.5},
    }  # fmt: skip
    played = scenario(brokers=8, load=load, duration_s=1200.0, step_s=10.0, warm_up_s=0)
    cold, warm = [], []
    for seed in SEEDS:
        past = Told()
        cold.append(run(played, seed=seed, witness=past))
        warm.append(run(played, seed=seed, supposed=seed_of(past.averages[-1])))
    spread = median(spread_after(one, 1) for one in warm)
    assert spread < 1.25
    assert spread < 0.7 * median(spread_after(one, 1) for one in cold)
    assert spread < 0.9 * median(spread_after(one, 20) for one in cold)
    shed = [one for each in warm for one in each.moves if one.cause is not Cause.UNOWNED]
    assert not shed
