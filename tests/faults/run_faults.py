"""Random faults on real processes, as many as wanted: ``run_faults.py --runs 50 --seed 1``.

Prints a line for each fault and a summary as the last line. The seed decides which
faults come in which order and whom they hit; what the processes do meanwhile is up to
the machine.
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from random import Random
from statistics import median

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

from fault_cluster import fault_cluster  # noqa: E402 - found through the line above
from fault_outcomes import Outcome, drawn_from  # noqa: E402 - the same
from faults import ENSEMBLE_FAULTS, FAULTS, PROXY_FAULTS, inject  # noqa: E402 - the same

FAULTS_PER_CLUSTER = 10


def plan(runs: int, rng: Random) -> Iterator[tuple[bool, Sequence[str]]]:
    """Yield clusters, each with whether it has an ensemble and what happens to it."""
    for first in range(0, runs, FAULTS_PER_CLUSTER):
        with_ensemble = rng.random() < 1 / 4
        left_out = PROXY_FAULTS if with_ensemble else ENSEMBLE_FAULTS
        names = [name for name in FAULTS if name not in left_out]
        count = min(FAULTS_PER_CLUSTER, runs - first)
        yield with_ensemble, [rng.choice(names) for _ in range(count)]


async def run(runs: int, seed: int, folder: Path) -> tuple[Sequence[Outcome], int]:
    """Let the faults happen; return what came of each, and how many messages nobody took."""
    rng = drawn_from(seed)
    outcomes: list[Outcome] = []
    never_taken = 0
    for number, (with_ensemble, names) in enumerate(plan(runs, rng), start=1):
        data_dir = folder / f"cluster-{number}"
        data_dir.mkdir()
        async with fault_cluster(
            data_dir, servers=3 if with_ensemble else 1, proxied=not with_ensemble
        ) as cluster:
            for name in names:
                outcomes.append(await inject(cluster, name, rng))
                tell(outcomes[-1])
            for report in await cluster.finish():
                never_taken += report.publish_errors
                if report.publish_errors:
                    say(f"  {report.publish_errors} never taken: {report.last_publish_error}")
    return outcomes, never_taken


def tell(outcome: Outcome) -> None:
    """Print one outcome."""
    violations = list(outcome.verdict.violations)
    say(
        f"{outcome.fault:45} served again after {outcome.recovery_s:5.2f} s, "
        f"taken again after {outcome.published_s:5.2f} s, {len(violations)} violations"
    )
    for violation in violations:
        say(f"  {violation}")


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def summary(outcomes: Sequence[Outcome], never_taken: int, seed: int) -> dict[str, object]:
    """Return the figures of all runs."""
    by_fault: defaultdict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by_fault[outcome.fault].append(outcome)
    return {
        "runs": len(outcomes),
        "seed": seed,
        "overlaps": sum(len(one.verdict.overlaps) for one in outcomes),
        "misplaced": sum(len(one.verdict.misplaced) for one in outcomes),
        "token_faults": sum(len(one.verdict.token_faults) for one in outcomes),
        "unserved": sum(len(one.verdict.unserved) for one in outcomes),
        "messages_never_taken": never_taken,
        "faults": {
            name: {
                "runs": len(found),
                "served_again_s": spread(one.recovery_s for one in found),
                "taken_again_s": spread(one.published_s for one in found),
            }
            for name, found in sorted(by_fault.items())
        },
    }


def spread(seconds: Iterable[float]) -> dict[str, float]:
    """Return median and worst."""
    ordered = sorted(seconds)
    return {"median": round(median(ordered), 2), "worst": round(ordered[-1], 2)}


def main() -> int:
    """Run, and return 1 if a promise was broken."""
    parser = argparse.ArgumentParser(description="Random faults on real processes.")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="keeps logs and records there")
    asked = parser.parse_args()
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="loadmanager-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    outcomes, never_taken = asyncio.run(run(asked.runs, asked.seed, folder))
    say(json.dumps(summary(outcomes, never_taken, asked.seed)))
    broken = never_taken or any(any(one.verdict.violations) for one in outcomes)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
