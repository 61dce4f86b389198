"""``loadmanager decide``: the leader's decision on a snapshot, without a cluster."""

from pathlib import Path
from typing import Any

import click

from loadmanager.cli.options import SEED_OPTION, ending, option, read_input


@click.command()
@option(
    "--snapshot",
    "file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
    help="A snapshot of a live leader, or Pulsar load reports by broker; - reads stdin.",
)
@option("--shedder", metavar="NAME", help="Another shedder, by our name or Pulsar's.")
@option("--placement", metavar="NAME", help="Another placement, by our name or Pulsar's.")
@option(
    "--set",
    "settings",
    metavar="[PART.]KEY=VALUE",
    multiple=True,
    help="One setting of every part that has it or of the part named (shedder, placement, "
    "planner, filters). docs/strategies.md lists the keys, ours and Pulsar's; those of [planner] "
    "are taken, too. May be given again.",
)
@option(
    "--mode",
    type=click.Choice(["safe", "parity"]),
    help="safe refuses moves that worsen the balance; parity behaves as Pulsar.",
)
@SEED_OPTION
@option(
    "--rounds",
    default=1,
    type=click.IntRange(1, 10_000),
    help="Number of rounds, a minute apart, each on the result of the one before.",
)
@option("--lenient", is_flag=True, help="Skip entries that cannot be read, and report them.")
@option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def decide(
    *, file: Path, seed: int, rounds: int, lenient: bool, as_json: bool, **wanted: Any
) -> None:
    """Decide on a snapshot as the leader would, offline, and print moves and reasons.

    The settings in the snapshot are used, unless options change them. Strategies and
    their settings are in docs/strategies.md, the format is in docs/snapshot-format.md.

    Example: loadmanager decide --snapshot cluster.json --shedder AvgShedder --set low_hits=1
    """
    import numpy as np

    from loadmanager.cli.decide_output import print_decision
    from loadmanager.config import ConfigError
    from loadmanager.config.strategies import Wanted, planner_for
    from loadmanager.core.errors import MalformedContent
    from loadmanager.core.snapshot.decoding import decode_snapshot
    from loadmanager.core.snapshot.rounds import run_rounds

    with ending(ConfigError, MalformedContent, OSError, code=2):
        snapshot = decode_snapshot(str(file), read_input(file), lenient=lenient)
        planner = planner_for(str(file), snapshot.in_force, Wanted(**wanted))
    for left_out in snapshot.left_out:
        click.echo(f"left out: {left_out}", err=True)
    done = run_rounds(snapshot, planner, np.random.default_rng(seed), rounds)
    print_decision(snapshot, planner, done, seed, as_json=as_json)
