"""``loadmanager decide``: the leader's decision on a snapshot, without a cluster."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from loadmanager.cli.options import option, print_json

if TYPE_CHECKING:
    from loadmanager.core.cost import CostDocument
    from loadmanager.core.planner import Planner
    from loadmanager.core.snapshot import Round, Snapshot


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
@option(
    "--cost-model",
    "costs",
    metavar="FILE|none",
    help="Use this cost model; none: shares of the traffic.",
)
@option(
    "--seed",
    default=0,
    type=click.IntRange(min=0),
    help="Seed of random choices.",
)
@option(
    "--rounds",
    default=1,
    type=click.IntRange(1, 10_000),
    help="Number of rounds, a minute apart, each on the result of the one before.",
)
@option("--lenient", is_flag=True, help="Skip entries that cannot be read, and report them.")
@option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def decide(
    *,
    file: Path,
    shedder: str | None,
    placement: str | None,
    settings: tuple[str, ...],
    mode: str | None,
    costs: str | None,
    seed: int,
    rounds: int,
    lenient: bool,
    as_json: bool,
) -> None:
    """Decide on a snapshot as the leader would, offline, and print moves and reasons.

    The settings in the snapshot are used, unless options change them. Strategies and
    their settings are in docs/strategies.md, the format is in docs/snapshot-format.md.

    Example: loadmanager decide --snapshot cluster.json --shedder AvgShedder --set low_hits=1
    """
    import numpy as np

    from loadmanager.config import ConfigError
    from loadmanager.config.offline import Wanted, planner_for
    from loadmanager.core.errors import MalformedContent
    from loadmanager.core.snapshot import decode_snapshot, run_rounds

    wanted = Wanted(shedder=shedder, placement=placement, mode=mode, settings=settings)
    try:
        snapshot = decode_snapshot(str(file), _content(file), lenient=lenient)
        planner = planner_for(str(file), snapshot.in_force, wanted)
        planner = planner.costing(_costs(snapshot, costs))
    except (ConfigError, MalformedContent, OSError) as error:
        click.echo(str(error), err=True)
        raise click.exceptions.Exit(2) from None
    for left_out in snapshot.left_out:
        click.echo(f"left out: {left_out}", err=True)
    done = run_rounds(snapshot, planner, np.random.default_rng(seed), rounds)
    if as_json:
        print_json(_document(snapshot, planner, done, seed))
    else:
        _print(planner, done)


def _content(file: Path) -> bytes:
    if str(file) == "-":
        return sys.stdin.buffer.read()
    return file.read_bytes()


def _costs(snapshot: "Snapshot", wanted: str | None) -> "CostDocument | None":
    from loadmanager.core.cost.document import decode_costs

    if wanted is not None:
        return None if wanted == "none" else decode_costs(wanted, Path(wanted).read_bytes())
    if snapshot.costs is None and snapshot.in_force.cost.get("model") == "learned":
        text = "the leader decided by a learned cost model, which is not in the snapshot"
        click.echo(f"{text}; give it with --cost-model", err=True)
    return snapshot.costs


def _document(
    snapshot: "Snapshot", planner: "Planner", done: Sequence["Round"], seed: int
) -> dict[str, object]:
    from loadmanager.cli.deciding import round_document
    from loadmanager.core.snapshot import in_force

    in_use = in_force(planner)
    return {
        "shedder": None if in_use.shedder is None else in_use.shedder.strategy,
        "placement": None if in_use.placement is None else in_use.placement.strategy,
        "mode": planner.settings.mode.value,
        "cost": dict(in_use.cost),
        "seed": seed,
        "leftOut": list(snapshot.left_out),
        "rounds": [round_document(number, one, planner) for number, one in enumerate(done, 1)],
    }


def _print(planner: "Planner", done: Sequence["Round"]) -> None:
    from loadmanager.cli.deciding import print_round

    click.echo(
        f"{type(planner.shedder).__name__}, {type(planner.placement).__name__}, "
        f"{planner.settings.mode.value} mode"
    )
    for number, one in enumerate(done, 1):
        if len(done) > 1:
            click.echo(f"\nRound {number} of {len(done)}")
        print_round(one, planner)
