"""``python -m tests.testbed.faults``: the service under random faults, in virtual time."""

import os
import time
from dataclasses import asdict, fields

import click

from loadmanager.core.fields import to_json
from tests.testbed.faults.campaign import Totals, outcomes
from tests.testbed.faults.seed_run import SeedOutcome

_SHOWN_LINES = 40


@click.command()
@click.option(
    "--seeds", default=100, type=click.IntRange(1), help="Number of runs, each with its own seed."
)
@click.option(
    "--first-seed",
    default=0,
    type=click.IntRange(0),
    help="The seed of the first run; the others follow it.",
)
@click.option(
    "--steps",
    default=40,
    type=click.IntRange(1, 10_000),
    help="Number of faults and requests in each run, before it must converge.",
)
@click.option(
    "--jobs", type=click.IntRange(1), help="Processes to run them in; by default one for each core."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each seed.")
def main(*, seeds: int, first_seed: int, steps: int, jobs: int | None, as_json: bool) -> None:
    """Run the service in simulated time under random faults, and check its promises.

    The same seed gives the same run. docs/simulated-faults.md describes the checked promises, and
    how to analyze a failure. Exits with 1 if a promise was not kept.
    """
    jobs = min(jobs or len(os.sched_getaffinity(0)), seeds)
    totals = Totals()
    began_s = time.monotonic()
    asked = range(first_seed, first_seed + seeds)
    for outcome in outcomes(asked, steps=steps, jobs=jobs):
        totals.add(outcome)
        if as_json:
            click.echo(to_json(asdict(outcome)))
    took_s = time.monotonic() - began_s
    if as_json:
        names = [one.name for one in fields(totals) if one.name != "failures"]
        summed = {name: getattr(totals, name) for name in names}
        failed = sorted(failure.seed for failure in totals.failures)
        click.echo(to_json({**summed, "jobs": jobs, "took_s": took_s, "failed_seeds": failed}))
    else:
        _print_totals(totals, took_s, jobs)
        for failure in sorted(totals.failures, key=lambda one: one.seed):
            _print_failure(failure, steps)
    if totals.failures:
        raise click.exceptions.Exit(1)


def _print_totals(totals: Totals, took_s: float, jobs: int) -> None:
    counted, hours = totals.counted, totals.virtual_s / 3600
    click.echo(
        f"{totals.seeds} seeds in {took_s:.1f} s with {jobs} "
        f"process{'es' if jobs > 1 else ''}: {totals.seeds / took_s:.1f} seeds/s"
    )
    click.echo(
        f"{totals.steps} steps in {hours:.1f} simulated hours, "
        f"{totals.virtual_s / took_s:.0f} times as fast as real time"
    )
    click.echo(
        f"{counted['answers']} of {counted['lookups']} lookups answered; "
        f"{counted['orders']} orders written in {counted['terms']} terms of leaders; "
        f"{counted['locks']} locks asked for, {counted['loads']} bundles loaded"
    )
    click.echo(
        f"longest undisturbed times: {totals.longest_unserved_s:.1f} s without a server, "
        f"{totals.longest_asked_s:.1f} s asked for and not served, "
        f"{totals.longest_unled_s:.1f} s without a leader"
    )
    click.echo("what happened:")
    for name, count in sorted(totals.happened.items(), key=lambda one: (-one[1], one[0])):
        click.echo(f"  {count:>8}  {name}")
    found = len(totals.failures)
    click.echo(f"{found} violation{'' if found == 1 else 's'}")


def _print_failure(failure: SeedOutcome, steps: int) -> None:
    click.echo(f"\nseed {failure.seed}: {failure.violation}")
    click.echo(f"the last of what happened, up to step {failure.steps}:")
    for line in failure.last_lines[-_SHOWN_LINES:]:
        click.echo(f"  {line}")
    repeating = f"--seeds 1 --first-seed {failure.seed} --steps {steps} --jobs 1"
    click.echo(f"to repeat it: python -m tests.testbed.faults {repeating}")


if __name__ == "__main__":
    main(prog_name="python -m tests.testbed.faults")
