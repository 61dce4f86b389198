import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from loadmanager.cli.options import JSON_OPTION, SEED_OPTION, moment_option, option, print_json
from loadmanager.cli.sidecar_client import SidecarClient, client_options
from loadmanager.cli.text_tables import Columns, optimality_line, print_records

_KINDS: Final = ("move", "placement", "drain", "unload", "observed", "left-alone")
_WIDTH: Final = 80
_INDENT: Final = " " * 12
"""As wide as the column of the times."""


@click.command("decisions")
@option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(_KINDS),
    help="Only this kind: a move of a round, the placement of a bundle without an owner, the drain "
    "of a broker, a manual unload, a move that was only observed, or something left alone. May "
    "be given again.",
)
@option("--bundle", default="", metavar="BUNDLE", help="Only those about this bundle.")
@option("--broker", default="", metavar="BROKER", help="Only moves from or to this broker.")
@option("--namespace", default="", metavar="TENANT/NAMESPACE", help="Only those about its bundles.")
@option(
    "--since",
    metavar="TIME",
    callback=moment_option,
    help="Only newer ones: 10m, 2h, 2026-11-01T06:00Z.",
)
@option(
    "--limit",
    default=50,
    type=click.IntRange(1, 10_000),
    help="Maximum number to list, newest first.",
)
@JSON_OPTION
@client_options()
def decisions_command(
    *,
    kinds: tuple[str, ...],
    bundle: str,
    broker: str,
    namespace: str,
    since: datetime | None,
    limit: int,
    as_json: bool,
    client: SidecarClient,
) -> None:
    """List the leader's last decisions: what moved, what was left alone, and why.

    A leader keeps the last 2,000 decisions of its own term; the history of all terms is
    recorded where [history] is configured. Times are in UTC.

    Example: loadmanager decisions --kind move --kind drain --since 30m
    """
    answer = client.json(
        "/admin/v2/loadmanager/decisions",
        limit=limit,
        kind=[one.replace("-", "_") for one in kinds],
        subject=bundle,
        broker=broker,
        namespace=namespace,
        sinceMs=0 if since is None else int(since.timestamp() * 1000),
    )
    if as_json:
        print_json(answer)
        return
    decisions = answer["decisions"]
    if not decisions:
        click.echo("No decision of this leader's term matches.")
        return
    click.echo("\n".join((*decision_lines(decisions), "", *_legend(decisions))))
    if answer["next"] is not None:
        click.echo(f"\nThese are the newest {limit}; --limit shows more.")


def decision_lines(decisions: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    date = ""
    for one in decisions:
        at = datetime.fromtimestamp(one["atMs"] / 1000, UTC)
        if date != f"{at:%Y-%m-%d}":
            date = f"{at:%Y-%m-%d}"
            yield f"{date}  kind        bundle, from -> to, numbers"
        what = one["subject"] or "the whole round"
        kind = one["kind"].replace("_", "-")
        line = f"{at:%H:%M:%S}    {kind:<10}  {what:<34}"
        whole = f"{line}  {one['code']}"
        fits = len(whole) <= _WIDTH
        yield whole if fits else line.rstrip()
        for below in ("" if fits else one["code"], *_ways(one), one["detail"], task_of(one)):
            yield from _below(below)


def task_of(one: Mapping[str, Any]) -> str:
    task = one.get("task")
    if not task:
        return ""
    return f"task {task['number']}" + (f": {task['state']}" if task["state"] else "")


def _ways(one: Mapping[str, Any]) -> tuple[str, ...]:
    way = _way(one)
    source, arrow, target = way.partition(" -> ")
    return (way,) if len(_INDENT + way) <= _WIDTH else (source, arrow.lstrip() + target)


def _below(text: str) -> Iterator[str]:
    yield from textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=_INDENT,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _legend(decisions: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    meanings = {one["code"]: one["meaning"] for one in decisions}
    for code, meaning in sorted(meanings.items()):
        text = f"{code}: {meaning}"
        yield from textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


@click.command("plan")
@option("--shedder", default="", metavar="NAME", help="Try another shedder.")
@option("--placement", default="", metavar="NAME", help="Try another placement.")
@option("--mode", default="", type=click.Choice(["", "safe", "parity"]), help="Try a mode.")
@option(
    "--set",
    "settings",
    multiple=True,
    metavar="[PART.]KEY=VALUE",
    help="Try a setting, as with `loadmanager decide`. May be given again.",
)
@SEED_OPTION
@JSON_OPTION
@client_options()
def plan_command(
    *,
    shedder: str,
    placement: str,
    mode: str,
    settings: tuple[str, ...],
    seed: int,
    as_json: bool,
    client: SidecarClient,
) -> None:
    """Print what a round would do now, also with other settings; nothing is changed.

    Exits with 2 if a strategy or setting does not exist.

    Example: loadmanager plan --shedder TransferShedder --set shedder.target_deviation=0.1
    """
    answer = client.json(
        "/admin/v2/loadmanager/plan",
        shedder=shedder,
        placement=placement,
        mode=mode,
        set=settings,
        seed=str(seed),
    )
    if as_json:
        print_json(answer)
        return
    moves = answer["moves"]
    if not moves:
        click.echo("Nothing would move.")
    move_columns: Columns = {
        "bundle": "{bundle}",
        "from": lambda one: one["source"] or "(no owner)",
        "to": "{target}",
        "because": "{meaning}",
    }
    print_records(f"{len(moves)} moves", move_columns, moves)
    refusal_columns: Columns = {
        "what": lambda one: one["subject"] or "the round",
        "because": "{meaning}",
        "numbers": "{detail}",
        "what it would take": "{takes}",
    }
    print_records(f"{answer['refusalsInAll']} left alone", refusal_columns, answer["refusals"])
    click.echo(f"\nNow: {optimality_line(answer['optimality'])}")
    if moves:
        click.echo(f"With these moves: {optimality_line(answer['withMoves'])}")
    if answer["balancing"]["mode"] != "active":
        click.echo(f"\nBalancing is {answer['balancing']['mode']}: a round would not do this now.")


def _way(one: Mapping[str, Any]) -> str:
    source, target = one["source"], one["target"]
    if source and target:
        return f"{source} -> {target}"
    return f"-> {target}" if target else source or ""


_COLUMNS: Final = {
    "strategy": "{strategy}",
    "rounds>": "{rounds}",
    "gap>": "{gap:.1%}",
    "mean gap>": "{meanGap:.1%}",
    "regret>": "{regret:+.1%}",
    "moves>": "{moves}",
    "traffic moved>": "{moved:.1%}",
}


@click.command("shadows")
@JSON_OPTION
@client_options()
def shadows_command(*, as_json: bool, client: SidecarClient) -> None:
    """Compare the strategies of `[shedding] shadows` with the active one.

    Each decides on what the leader sees, as if it had decided since the leader's term began,
    and moves nothing. The gap is how far the fullest broker is above the proven lower bound;
    mean gap, regret (the active strategy's mean gap less this one's), moves and the traffic
    that they moved are of the last 60 rounds.

    Example: loadmanager shadows --url http://broker-1.example.org:7750
    """
    answer = client.json("/admin/v2/loadmanager/shadows")
    if as_json:
        print_json(answer)
        return
    shadows = answer["shadows"]
    if not shadows:
        click.echo("No strategy decides beside the active one: [shedding] shadows names them.")
        return
    print_records(f"Beside {answer['active']}", _COLUMNS, shadows)
    longest = max(shadows, key=lambda one: one["rounds"])
    click.echo(
        f"{answer['active']} in the last {longest['rounds']} rounds: mean gap "
        f"{longest['meanGap'] + longest['regret']:.1%}, {longest['activeMoves']} moves, "
        f"traffic moved {longest['activeMoved']:.1%}"
    )
