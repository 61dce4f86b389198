"""Random faults on real processes, as many as wanted: ``run_faults.py --runs 50 --seed 1``.

Prints a line for each run, then a table by kind, then the figures as JSON. Each run has a
seed of its own, which decides whom the fault hits; the first one's is ``--seed``. What
the processes do meanwhile is up to the machine. Every kind comes once before any comes
twice.

Ends with 1 if a promise was broken, with 2 if the machine left a run open each time.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

SUPPORT = Path(__file__).parents[1] / "support"
sys.path.insert(0, str(SUPPORT))

from fault_cluster import MARGIN_S, SESSION_S, TICK_S  # noqa: E402 - found through the line above
from fault_surroundings import (  # noqa: E402 - the same
    ALL_FAULTS,
    FAULTS_APART,
    HOW_TO_BE_APART,
    Surroundings,
    going_apart,
    possible_in,
    raise_loopback,
    surrounded,
)
from faults import (  # noqa: E402 - the same
    Finding,
    Outcome,
    drawn_from,
    observe_until_sure,
)

FAULTS_PER_CLUSTER = 10


@dataclass(frozen=True, slots=True)
class Run:
    fault: str
    seed: int


@dataclass(slots=True)
class Tally:
    outcomes: list[Outcome] = field(default_factory=list)
    never_taken: int = 0

    @property
    def left_open(self) -> int:
        return sum(one.finding is Finding.INCONCLUSIVE for one in self.outcomes)

    @property
    def broken(self) -> int:
        return sum(one.finding is Finding.BROKEN for one in self.outcomes)


def plan(
    kinds: Sequence[str], runs: int, seed: int, *, apart: bool
) -> Iterator[tuple[Surroundings, list[Run]]]:
    """Yield clusters, each with where it stands and what happens to it."""
    rng = drawn_from(seed)
    deck: list[str] = []
    while len(deck) < runs:
        deck += rng.sample(kinds, len(kinds))
    by_place: defaultdict[Surroundings, list[Run]] = defaultdict(list)
    for number, fault in enumerate(deck[:runs]):
        by_place[rng.choice(possible_in(fault, apart=apart))].append(Run(fault, seed + number))
    for place, planned in by_place.items():
        for first in range(0, len(planned), FAULTS_PER_CLUSTER):
            yield place, planned[first : first + FAULTS_PER_CLUSTER]


async def run_all(clusters: Iterator[tuple[Surroundings, list[Run]]], folder: Path) -> Tally:
    tracker = Tally()
    for number, (place, runs) in enumerate(clusters, start=1):
        data_dir = folder / f"cluster-{number}"
        data_dir.mkdir()
        say(f"{place}: three brokers and their sidecars")
        async with surrounded(place, data_dir) as cluster:
            for run in runs:
                rng = drawn_from(run.seed)
                fault = ALL_FAULTS[run.fault]
                for outcome in await observe_until_sure(cluster, run.fault, fault, rng):
                    say(f"seed {run.seed:4} {outcome}")
                tracker.outcomes.append(outcome)
            for report in await cluster.finish():
                tracker.never_taken += report.publish_errors
                if report.publish_errors:
                    say(f"  {report.publish_errors} never taken: {report.last_publish_error}")
    return tracker


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def by_kind(outcomes: Sequence[Outcome]) -> Mapping[str, Mapping[str, float | int]]:
    """Return the figures of each kind of fault; times are in seconds."""
    found: defaultdict[str, list[Outcome]] = defaultdict(list)
    for one in outcomes:
        found[one.fault].append(one)
    return {
        name: {
            "runs": len(of_kind),
            "median_s": round(median(one.recovery_s for one in of_kind), 2),
            "worst_s": round(max(one.recovery_s for one in of_kind), 2),
            "bound_s": round(max(one.within_s for one in of_kind), 2),
            "violations": sum(len(list(one.verdict.violations)) for one in of_kind),
            "left_open": sum(one.finding is Finding.INCONCLUSIVE for one in of_kind),
        }
        for name, of_kind in sorted(found.items())
    }


def tell_table(kinds: Mapping[str, Mapping[str, float | int]]) -> None:
    head = ("runs", "median_s", "worst_s", "bound_s", "violations", "left_open")
    say(f"{'':46} " + " ".join(f"{name:>10}" for name in head))
    for name, figures in kinds.items():
        say(f"{name:46} " + " ".join(f"{figures[one]:>10}" for one in head))


def figures(tracker: Tally, seed: int) -> Mapping[str, object]:
    verdicts = [one.verdict for one in tracker.outcomes]
    return {
        "runs": len(tracker.outcomes),
        "seed": seed,
        "session_timeout_s": SESSION_S,
        "zookeeper_tick_s": TICK_S,
        "margin_s": MARGIN_S,
        "broken": tracker.broken,
        "left_open": tracker.left_open,
        "overlaps": sum(len(one.overlaps) for one in verdicts),
        "misplaced": sum(len(one.misplaced) for one in verdicts),
        "token_faults": sum(len(one.token_faults) for one in verdicts),
        "unserved": sum(len(one.unserved) for one in verdicts),
        "messages_never_taken": tracker.never_taken,
        "faults": by_kind(tracker.outcomes),
    }


def go_apart() -> None:
    """Go on in namespaces of its own, where there can be; else return."""
    command = going_apart()
    if command:
        ours = [sys.executable, __file__, *sys.argv[1:], "--apart"]
        os.execvp(command[0], [*command, *ours])  # noqa: S606 - no shell is wanted
    say(f"left out: {', '.join(FAULTS_APART)}; {HOW_TO_BE_APART}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Random faults on real processes.")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", action="append", choices=ALL_FAULTS, help="only these")
    parser.add_argument("--folder", type=Path, help="keeps logs and records there")
    parser.add_argument("--apart", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    kinds = asked.kind or list(ALL_FAULTS)
    if asked.apart:
        raise_loopback()
    elif set(kinds) & set(FAULTS_APART):
        go_apart()
        kinds = [kind for kind in kinds if kind not in FAULTS_APART]
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="loadmanager-faults-"))
    folder.mkdir(parents=True, exist_ok=True)
    clusters = plan(kinds, asked.runs, asked.seed, apart=asked.apart)
    tracker = asyncio.run(run_all(clusters, folder))
    told = figures(tracker, asked.seed)
    tell_table(by_kind(tracker.outcomes))
    say(json.dumps(told))
    if tracker.broken or tracker.never_taken:
        return 1
    return 2 if tracker.left_open else 0


if __name__ == "__main__":
    sys.exit(main())
