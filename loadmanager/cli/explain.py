import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Final

import click

from loadmanager.cli.decisions import task_of
from loadmanager.cli.options import option, print_json
from loadmanager.cli.sidecar_client import SidecarClient, client_options
from loadmanager.cli.tasks import age
from loadmanager.cli.text_tables import (
    Columns,
    fitted,
    optimality_line,
    print_records,
    terminal_width,
    utc,
)

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
_KINDS: Final[Mapping[str, str]] = {
    "move": "moved",
    "observed": "would have been moved (the leader only observes)",
    "placement": "placed",
    "drain": "moved off a draining broker",
    "unload": "unloaded",
    "left_alone": "left alone",
}


@click.command("explain")
@click.argument("subject", metavar="BUNDLE|BROKER")
@option("--json", "as_json", is_flag=True, help="Print the leader's answer as it is.")
@client_options()
def explain_command(*, subject: str, as_json: bool, client: SidecarClient) -> None:
    """Explain why a bundle or a broker was moved or left alone, and what would change it.

    Exits with 2 if there is no such bundle or broker, with 1 if no leader answers.

    Example: loadmanager explain public/default/0x00000000_0x08000000
    """
    account = client.json("/admin/v2/loadmanager/explain", subject=subject)
    if as_json:
        print_json(account)
    else:
        _print_account(account)


def _print_account(account: Mapping[str, Any]) -> None:
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
    for text in (*_in_force(account["inForce"]), cluster, _footer(account)):
        _echo(text)


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
        outcome = f"{what}{_KINDS[one['kind']]} {way}".rstrip()
        yield f"\n{utc(one['atMs'])}, epoch {one['epoch']}, {where}: {outcome} ({one['code']})"
        yield from _meaning(one)
        if task_of(one):
            yield f"  Carried out by {task_of(one)}"


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


def _in_force(content: Mapping[str, Any]) -> Iterator[str]:
    for part in ("shedder", "placement"):
        settings = _settings(content[part]["settings"])
        yield f"{part.capitalize()} {content[part]['strategy']}: {settings or 'no settings'}"
    yield f"Planner: {_settings(content['planner'])}"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_shown(value)}" for key, value in values.items())


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _footer(account: Mapping[str, Any]) -> str:
    rounds = (
        f"last round {account['lastRound']} at {utc(account['lastRoundAtMs'])}"
        if account["lastRound"]
        else "no round yet"
    )
    return f"Explained by {account['leader']}, leader of epoch {account['epoch']}; {rounds}."
