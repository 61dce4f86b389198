from collections.abc import Mapping
from typing import Any, Final

import click

from loadmanager.cli.options import JSON_OPTION, option, print_json
from loadmanager.cli.sidecar_client import SidecarClient, client_options
from loadmanager.cli.text_tables import Columns, print_records, utc

_KINDS: Final = ("place", "move", "split", "merge")
_STATES: Final = (
    "unconfirmed",
    "ordered",
    "released",
    "serving",
    "failed",
    "superseded",
    "timed-out",
    "landed-elsewhere",
)
_MINUTE_S: Final = 60
_HOUR_S: Final = 3600


@click.command("tasks")
@option("--all", "ended_too", is_flag=True, help="Also list the last 200 that ended.")
@option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(_KINDS),
    help="List only tasks of this kind. May be given again.",
)
@option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(_STATES),
    help="List only tasks in this state; one of the last five implies --all. May be given again.",
)
@option("--bundle", default="", metavar="BUNDLE", help="List only tasks of this bundle.")
@option(
    "--namespace",
    default="",
    metavar="TENANT/NAMESPACE",
    help="List only tasks of its bundles.",
)
@option(
    "--broker",
    default="",
    metavar="BROKER",
    help="List only tasks that take a bundle from or to this broker.",
)
@option(
    "--limit",
    default=50,
    type=click.IntRange(1, 10_000),
    help="Maximum number of tasks to list: live ones first, oldest first.",
)
@JSON_OPTION
@client_options()
def tasks_command(
    *,
    ended_too: bool,
    kinds: tuple[str, ...],
    states: tuple[str, ...],
    bundle: str,
    namespace: str,
    broker: str,
    limit: int,
    as_json: bool,
    client: SidecarClient,
) -> None:
    """List the moves, placements, splits and merges that are under way, with their ages.

    Each is a task of the leader from its order until the new owner serves the bundle. With
    --all those that ended last follow, with the reason. Times are in UTC.

    Example: loadmanager tasks --all --broker broker-1:8080
    """
    live = not ended_too and not set(states) & set(_STATES[3:])
    answer = client.json(
        "/admin/v2/loadmanager/tasks",
        limit=limit,
        live="true" if live else "",
        kind=kinds,
        state=[one.replace("-", "_") for one in states],
        bundle=bundle,
        namespace=namespace,
        broker=broker,
    )
    if as_json:
        print_json(answer)
        return
    tasks = answer["tasks"]
    if not tasks:
        where = "under way" if live else "of this leader's term"
        click.echo(f"No task {where} fits." + (" --all lists those that ended." if live else ""))
        return
    title = f"{answer['found']} tasks at {utc(answer['atMs'])}, leader {answer['leader']}"
    columns: Columns = {
        "task>": "{number}",
        "kind": "{kind}",
        "state": lambda one: one["state"].replace("_", "-"),
        "age>": lambda one: age(one["ageS"]),
        "attempts>": "{attempts}",
        "cause": "{cause}",
        "asked by": "{askedBy}",
        "bundle": lambda one: " + ".join(one["bundles"]),
        "from": lambda one: one["source"] or "(no owner)",
        "to": "{target}",
        "note": _note,
    }
    print_records(f"{title}, epoch {answer['epoch']}", columns, tasks)
    if answer["found"] > len(tasks):
        click.echo(f"\nThese are the first {limit}; --limit shows more.")


def age(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds / _HOUR_S:.1f} h"


def _note(one: Mapping[str, Any]) -> str:
    ended = "" if one["endedAtMs"] is None else f"ended {utc(one['endedAtMs'])}"
    return "; ".join(text for text in (one["note"], ended) if text)
