"""``loadmanager decisions`` and ``loadmanager plan``: what the leader did, and what it would do."""

from typing import Any

import click

from loadmanager.cli.asking import Reach, reaching

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


@click.command("decisions")
@click.option(
    "--limit",
    default=50,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="At most so many, the newest first.",
)
@_JSON
@reaching()
def decisions_command(*, limit: int, as_json: bool, reach: Reach) -> None:
    """List what the leader decided lately: moves, and what it left alone and why.

    Example: loadmanager decisions --limit 20
    """
    import json

    from loadmanager.cli.tables import print_table

    told = reach.json("/admin/v2/loadmanager/decisions", limit=str(limit))
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    rows = [
        (
            _time(one["atMs"]),
            one["round"] if one["round"] is not None else "",
            one["subject"] or "the round",
            one["outcome"],
            _way(one),
            one["meaning"],
            one["detail"],
        )
        for one in told["decisions"]
    ]
    columns = ["when", "round>", "what", "outcome", "way", "because", "numbers"]
    print_table(f"{len(rows)} decisions", columns, rows)


@click.command("plan")
@click.option("--shedder", default="", metavar="NAME", help="Try another shedder.")
@click.option("--placement", default="", metavar="NAME", help="Try another placement.")
@click.option("--mode", default="", type=click.Choice(["", "safe", "parity"]), help="Try a mode.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="[PART.]KEY=VALUE",
    help="Try a setting, as with `loadmanager decide`. May be given again.",
)
@click.option(
    "--seed", default=0, show_default=True, type=click.IntRange(min=0), help="For equal choices."
)
@_JSON
@reaching()
def plan_command(
    *,
    shedder: str,
    placement: str,
    mode: str,
    settings: tuple[str, ...],
    seed: int,
    as_json: bool,
    reach: Reach,
) -> None:
    """Tell what a round would do now, with other settings if you like; nothing is done.

    Ends with 2 if a strategy or setting does not exist.

    Example: loadmanager plan --shedder TransferShedder --set shedder.target_deviation=0.1
    """
    import json
    from urllib.parse import urlencode

    from loadmanager.cli.tables import print_table

    query: dict[str, str | tuple[str, ...]] = {
        "shedder": shedder,
        "placement": placement,
        "mode": mode,
        "set": settings,
        "seed": str(seed),
    }
    asked = urlencode({name: value for name, value in query.items() if value}, doseq=True)
    told = reach.json(f"/admin/v2/loadmanager/plan?{asked}")
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    moves = [
        (one["bundle"], one["source"] or "nobody", one["target"], one["meaning"])
        for one in told["moves"]
    ]
    if not moves:
        click.echo("Nothing would move.")
    print_table(f"{len(moves)} moves", ["bundle", "from", "to", "because"], moves)
    left = [
        (one["subject"] or "the round", one["meaning"], one["detail"], one["takes"])
        for one in told["refusals"]
    ]
    print_table(
        f"{told['refusalsInAll']} left alone",
        ["what", "because", "numbers", "what it would take"],
        left,
    )
    if told["balancing"]["mode"] != "active":
        click.echo(f"\nBalancing is {told['balancing']['mode']}: a round would not do this now.")


def _time(at_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _way(one: dict[str, Any]) -> str:
    source, target = one["source"], one["target"]
    if source and target:
        return f"{source} → {target}"
    return source or target or ""
