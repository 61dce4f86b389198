"""``loadmanager shadows``: what other strategies would have had."""

from collections.abc import Mapping
from typing import Any, Final

import click

from loadmanager.cli.asking import Reach, reaching
from loadmanager.cli.options import JSON_OPTION, print_json

_COLUMNS: Final = (
    "strategy",
    "rounds>",
    "gap>",
    "mean gap>",
    "regret>",
    "moves>",
    "traffic moved>",
)


@click.command("shadows")
@JSON_OPTION
@reaching()
def shadows_command(*, as_json: bool, reach: Reach) -> None:
    """Show what the strategies of `[shedding] shadows` would have had.

    Each decides on what the leader sees, as if it had decided since the leader's term began,
    and moves nothing. The gap is how far the fullest broker is above the proven lower bound;
    mean gap, regret (the active strategy's mean gap less this one's), moves and the traffic
    that they moved are of the last 60 rounds.

    Example: loadmanager shadows --url http://broker-1.example.org:7750
    """
    from loadmanager.cli.text_tables import print_table

    told = reach.json("/admin/v2/loadmanager/shadows")
    if as_json:
        print_json(told)
        return
    shadows = told["shadows"]
    if not shadows:
        click.echo("No strategy decides beside the active one: [shedding] shadows names them.")
        return
    print_table(f"Beside {told['active']}", _COLUMNS, [_row(one) for one in shadows])
    longest = max(shadows, key=lambda one: one["rounds"])
    click.echo(
        f"{told['active']} in the last {longest['rounds']} rounds: mean gap "
        f"{longest['meanGap'] + longest['regret']:.1%}, {longest['activeMoves']} moves, "
        f"traffic moved {longest['activeMoved']:.1%}"
    )


def _row(one: Mapping[str, Any]) -> tuple[object, ...]:
    gap = "-" if one["gap"] is None else f"{one['gap']:.1%}"
    return (
        *(one["strategy"], one["rounds"], gap, f"{one['meanGap']:.1%}"),
        *(f"{one['regret']:+.1%}", one["moves"], f"{one['moved']:.1%}"),
    )
