"""``python -m tests.testbed.faults``: the service under random faults, in virtual time."""

import os
import time
from collections import Counter
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

    The same seed gives the same run. docs/faults.md describes the checked promises, and
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
    names = [one.name for one in fields(totals) if one.name != "failures"]
    summed = {name: getattr(totals, name) for name in names}
    failed = sorted(failure.seed for failure in totals.failures)
    summed |= {"jobs": jobs, "took_s": took_s, "failed_seeds": failed}
    if as_json:
        click.echo(to_json(summed))
    else:
        for name, value in summed.items():
            click.echo(f"{name}: {dict(value) if isinstance(value, Counter) else value}")
        for failure in sorted(totals.failures, key=lambda one: one.seed):
            _print_failure(failure, steps)
    if totals.failures:
        raise click.exceptions.Exit(1)


def _print_failure(failure: SeedOutcome, steps: int) -> None:
    click.echo(f"\nseed {failure.seed}: {failure.violation}")
    click.echo(f"the last of what happened, up to step {failure.steps}:")
    for line in failure.last_lines[-_SHOWN_LINES:]:
        click.echo(f"  {line}")
    repeating = f"--seeds 1 --first-seed {failure.seed} --steps {steps} --jobs 1"
    click.echo(f"to repeat it: python -m tests.testbed.faults {repeating}")


if __name__ == "__main__":
    main(prog_name="python -m tests.testbed.faults")
