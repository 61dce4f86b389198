"""``loadmanager decide``: the leader's decision on a snapshot, without a cluster."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Final

import click

from loadmanager.cli.options import (
    SEED_OPTION,
    Columns,
    ending,
    fitted,
    json_option,
    moment_option,
    optimality_line,
    option,
    print_records,
    read_input,
    terminal_width,
    utc,
)
from loadmanager.cli.sidecar_client import SidecarClient, client_options

_KINDS: Final = ("move", "placement", "drain", "unload", "observed", "left-alone")


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
@option("--bundle", "subject", default="", metavar="BUNDLE", help="Only those about this bundle.")
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
@json_option()
@client_options()
def decisions_command(
    *,
    kinds: tuple[str, ...],
    since: datetime | None,
    client: SidecarClient,
    **asked: Any,
) -> Iterator[object]:
    """List the leader's last decisions: what moved, what was left alone, and why.

    A leader keeps the last 2,000 decisions of its own term; the history of all terms is
    recorded where [history] is configured. Times are in UTC.

    Example: loadmanager decisions --kind move --kind drain --since 30m
    """
    answer = client.json(
        "/admin/v2/loadmanager/decisions",
        kind=[one.replace("-", "_") for one in kinds],
        sinceMs=0 if since is None else int(since.timestamp() * 1000),
        **asked,
    )
    yield answer
    decisions = answer["decisions"]
    if not decisions:
        click.echo("No decision of this leader's term matches.")
        return
    columns: Columns = {
        "UTC": lambda one: utc(one["atMs"]).rstrip("Z"),
        "kind": lambda one: one["kind"].replace("_", "-"),
        "what": lambda one: one["subject"] or "the whole round",
        "from": lambda one: one["source"] or "",
        "to": lambda one: one["target"] or "",
        "reason": "{code}",
        "numbers": "{detail}",
        "task": _task_of,
    }
    print_records(f"{len(decisions)} decisions", columns, decisions)
    click.echo("")
    for meaning in sorted({f"{one['code']}: {one['meaning']}" for one in decisions}):
        _echo(meaning)
    if answer["next"] is not None:
        click.echo(f"\nThese are the newest {asked['limit']}; --limit shows more.")


def _task_of(one: Mapping[str, Any]) -> str:
    task = one.get("task")
    if not task:
        return ""
    return f"task {task['number']}" + (f": {task['state']}" if task["state"] else "")


@click.command("plan")
@option("--shedder", default="", metavar="NAME", help="Try another shedder.")
@option("--placement", default="", metavar="NAME", help="Try another placement.")
@option("--mode", default="", type=click.Choice(["", "safe", "parity"]), help="Try a mode.")
@option(
    "--set",
    "set",
    multiple=True,
    metavar="[PART.]KEY=VALUE",
    help="Try a setting, as with `loadmanager decide`. May be given again.",
)
@SEED_OPTION
@json_option()
@client_options()
def plan_command(*, seed: int, client: SidecarClient, **asked: Any) -> Iterator[object]:
    """Print what a round would do now, also with other settings; nothing is changed.

    Exits with 2 if a strategy or setting does not exist.

    Example: loadmanager plan --shedder TransferShedder --set shedder.target_deviation=0.1
    """
    answer = client.json("/admin/v2/loadmanager/plan", seed=str(seed), **asked)
    yield answer
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
@json_option()
@client_options()
def shadows_command(*, client: SidecarClient) -> Iterator[object]:
    """Compare the strategies of `[shedding] shadows` with the active one.

    Each decides on what the leader sees, as if it had decided since the leader's term began,
    and moves nothing. The gap is how far the fullest broker is above the proven lower bound;
    mean gap, regret (the active strategy's mean gap less this one's), moves and the traffic
    that they moved are of the last 60 rounds.

    Example: loadmanager shadows --url http://broker-1.example.org:7750
    """
    answer = client.json("/admin/v2/loadmanager/shadows")
    yield answer
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
    multiple=True,
    type=click.Choice(["place", "move", "split", "merge"]),
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
    "--namespace", default="", metavar="TENANT/NAMESPACE", help="List only tasks of its bundles."
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
@json_option()
@client_options()
def tasks_command(
    *, ended_too: bool, states: tuple[str, ...], client: SidecarClient, **asked: Any
) -> Iterator[object]:
    """List the moves, placements, splits and merges that are under way, with their ages.

    Each is a task of the leader from its order until the new owner serves the bundle. With
    --all those that ended last follow, with the reason. Times are in UTC.

    Example: loadmanager tasks --all --broker broker-1:8080
    """
    live = not ended_too and not set(states) & set(_STATES[3:])
    answer = client.json(
        "/admin/v2/loadmanager/tasks",
        live="true" if live else "",
        state=[one.replace("-", "_") for one in states],
        **asked,
    )
    yield answer
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
        click.echo(f"\nThese are the first {asked['limit']}; --limit shows more.")


def age(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.1f} min"
    return f"{seconds / _HOUR_S:.1f} h"


def _note(one: Mapping[str, Any]) -> str:
    ended = "" if one["endedAtMs"] is None else f"ended {utc(one['endedAtMs'])}"
    return "; ".join(text for text in (one["note"], ended) if text)


_SOURCES: Final[Mapping[str, str]] = {
    "reports": "load reports",
    "default": "defaults",
    "rates": "rates, since usage is below its noise",
}
_UNITS: Final[Mapping[str, str]] = {
    "cpu": "% of a core",
    "memory": "MiB",
    "direct_memory": "MiB",
    "bandwidth_in": "kbit/s",
    "bandwidth_out": "kbit/s",
    "rates": "of all traffic",
}
_USE: Final[Columns] = {
    "resource": "{resource}",
    "reported>": "{reported:.3f}",
    "predicted>": "{predicted:.3f}",
    "background>": "{background:.3f}",
    "speed>": "{speed:.2f}",
    "noise>": "{noise:.3f}",
}
_COST: Final[Columns] = {
    "resource": "{resource}",
    "usage>": "{usage:.4g}",
    "unit": lambda one: _UNITS[one["resource"]],
    "uncertain by>": "{sd:.2g}",
    "known from": lambda one: _SOURCES[one["source"]],
    "learned>": "{learnedFraction:.0%}",
}
_SCORES: Final[Columns] = {"score>": "{score:.3f}", "with it>": "{scoreWith:.3f}"}
_PAYBACK: Final[Columns] = {
    "resource": "{payback[resource]}",
    "use>": "{payback[use]:.3f}",
    "with it>": "{payback[useWith]:.3f}",
    "saves>": "{payback[saving]:.4f}",
    "price>": "{payback[price]:.4f}",
}
_NO_PAYBACK: Final = dict.fromkeys(("resource", "use", "useWith", "saving", "price"))
_CANDIDATES_SHOWN: Final = 20
_OUTCOMES: Final[Mapping[str, str]] = {
    "move": "moved",
    "observed": "would have been moved (the leader only observes)",
    "placement": "placed",
    "drain": "moved off a draining broker",
    "unload": "unloaded",
    "left_alone": "left alone",
}


@click.command("explain")
@click.argument("subject", metavar="BUNDLE|BROKER")
@json_option("Print the leader's answer as it is.")
@client_options()
def explain_command(*, subject: str, client: SidecarClient) -> Iterator[object]:
    """Explain why a bundle or a broker was moved or left alone, and what would change it.

    Exits with 2 if there is no such bundle or broker, with 1 if no leader answers.

    Example: loadmanager explain public/default/0x00000000_0x08000000
    """
    account = client.json("/admin/v2/loadmanager/explain", subject=subject)
    yield account
    parts = (_tasks(account), _decisions(account), _grounds(account))
    for text in (_headline(account), _load_line(account), *chain.from_iterable(parts)):
        _echo(text)
    weighing = account.get("weighing")
    if weighing is not None:
        _echo(
            f"\nWeighed by learned costs: the level is {weighing['level']:.3f}, and "
            f"{weighing['lasting']:.0%} of a change of traffic is taken to last for ten minutes."
        )
        broker = account["subject"] if account["kind"] == "broker" else account["owner"]
        print_records(f"What {broker} uses, as fractions of its limits", _USE, weighing["uses"])
        print_records("What the bundle uses on a broker of speed 1", _COST, weighing["costs"])
    _print_candidates(account["candidates"])
    click.echo("")
    cluster = f"The cluster: {optimality_line(account['optimality'])}."
    in_force = account["inForce"]
    for part in ("shedder", "placement"):
        settings = _settings(in_force[part]["settings"]) or "no settings"
        _echo(f"{part.capitalize()} {in_force[part]['strategy']}: {settings}")
    _echo(f"Planner: {_settings(in_force['planner'])}")
    _echo(cluster)
    rounds = "no round yet"
    if account["lastRound"]:
        rounds = f"last round {account['lastRound']} at {utc(account['lastRoundAtMs'])}"
    _echo(f"Explained by {account['leader']}, leader of epoch {account['epoch']}; {rounds}.")


def _print_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    weighed = any(one.get("payback") is not None for one in candidates)
    figures = _PAYBACK if weighed else _SCORES
    columns: Columns = {
        "broker": "{broker}",
        **figures,
        "verdict": lambda one: one["refused"] or "may take it",
        "meaning": "{meaning}",
    }
    shown = [
        {**one, "payback": one.get("payback") or _NO_PAYBACK}
        for one in candidates[:_CANDIDATES_SHOWN]
    ]
    print_records("Where it could go", columns, shown)
    if len(candidates) > _CANDIDATES_SHOWN:
        click.echo(f"... and {len(candidates) - _CANDIDATES_SHOWN} more (--json prints all)")


def _echo(text: str) -> None:
    width = terminal_width()
    click.echo("\n".join(fitted(line, width) for line in text.split("\n")))


def _headline(account: Mapping[str, Any]) -> str:
    if account["kind"] == "broker":
        return f"{account['subject']} has {account['bundles']} bundles."
    owner, target = account["owner"], account["target"]
    place = f"is on {owner}" if owner else "is reported by no broker"
    return f"{account['subject']} {place}" + (f", on its way to {target}." if target else ".")


def _load_line(account: Mapping[str, Any]) -> str:
    scores = account["scores"]
    traffic = f"{account['msgsPerS']:.1f} messages/s, {account['bytesPerS'] / 1000:.1f} kB/s"
    others = (
        f"mean {scores['mean']:.3f}, lowest {scores['lowest']:.3f}, highest {scores['highest']:.3f}"
    )
    whose = "its score" if account["kind"] == "broker" else "its broker's score"
    own = "" if scores["own"] is None else f"; {whose} {scores['own']:.3f}"
    return f"Traffic {traffic}{own}; {others}."


def _tasks(account: Mapping[str, Any]) -> Iterator[str]:
    for one in account["tasks"]:
        when = f"{age(one['ageS'])} old" if one["live"] else f"ended {utc(one['endedAtMs'])}"
        way = f"from {one['source']} to {one['target']}" if one["source"] else f"to {one['target']}"
        state = one["state"].replace("_", " ")
        asked_by = f"asked by {one['askedBy']}, attempts: {one['attempts']}"
        yield f"\nTask {one['number']}, {one['kind']} {way}: {state}, {when} ({asked_by})"
        if one["note"]:
            yield f"  {one['note']}"


def _decisions(account: Mapping[str, Any]) -> Iterator[str]:
    if not account["decisions"]:
        yield "\nThis leader has decided nothing about it."
    for one in account["decisions"]:
        where = f"round {one['round']}" if one["round"] else "between two rounds"
        way = " ".join(
            f"{word} {one[end]}"
            for word, end in (("from", "source"), ("to", "target"))
            if one[end] is not None
        )
        what = f"{one['subject']}: " if one["subject"] != account["subject"] else ""
        outcome = f"{what}{_OUTCOMES[one['kind']]} {way}".rstrip()
        yield f"\n{utc(one['atMs'])}, epoch {one['epoch']}, {where}: {outcome} ({one['code']})"
        yield from _meaning(one)
        if _task_of(one):
            yield f"  Carried out by {_task_of(one)}"


def _grounds(account: Mapping[str, Any]) -> Iterator[str]:
    if account["grounds"]:
        yield "\nWhat holds it now"
    for one in account["grounds"]:
        about = one["about"] or "the whole round"
        yield f"  {one['reason']} ({about})"
        yield from _meaning(one, "    ")


def _meaning(one: Mapping[str, Any], indent: str = "  ") -> Iterator[str]:
    yield f"{indent}{one['meaning']}"
    if one["detail"]:
        yield f"{indent}Numbers: {one['detail']}"
    if one["takes"]:
        yield f"{indent}It would take: {one['takes']}"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{key} {f'{value:g}' if isinstance(value, float) else json.dumps(value)}"
        for key, value in values.items()
    )


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
    from loadmanager.core.playback import run_rounds
    from loadmanager.core.snapshot.codec import decode_snapshot

    with ending(ConfigError, MalformedContent, OSError, code=2):
        snapshot = decode_snapshot(str(file), read_input(file), lenient=lenient)
        planner = planner_for(str(file), snapshot.in_force, Wanted(**wanted))
    for left_out in snapshot.left_out:
        click.echo(f"left out: {left_out}", err=True)
    done = tuple(run_rounds(snapshot, planner, np.random.default_rng(seed), rounds))
    print_decision(snapshot, planner, done, seed, as_json=as_json)
