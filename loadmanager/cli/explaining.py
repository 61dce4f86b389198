"""The leader's explanation of a bundle or a broker, as text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import chain
from typing import Any, Final

import click

from loadmanager.cli.decisions import task_of
from loadmanager.cli.tasks import age
from loadmanager.cli.text_tables import fitted, optimality_line, print_table, terminal_width

_SOURCES: Final[Mapping[str, str]] = {
    "reports": "load reports",
    "pipeline": "the published cost model",
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


def weighing_line(weighing: Mapping[str, Any]) -> str:
    """Return what holds for the whole cluster."""
    return (
        f"\nWeighed by learned costs: the level is {weighing['level']:.3f}, and "
        f"{weighing['lasting']:.0%} of a change of traffic is taken to last for ten minutes."
    )


def print_weighing(weighing: Mapping[str, Any], broker: str | None) -> None:
    """Print how a broker's use is predicted, and what a bundle costs and how that is known."""
    print_table(
        f"What {broker} uses, as fractions of its limits",
        ("resource", "reported>", "predicted>", "background>", "speed>", "noise>"),
        [_use_row(one) for one in weighing["uses"]],
    )
    print_table(
        "What the bundle uses on a broker of speed 1",
        ("resource", "usage>", "unit", "uncertain by>", "known from", "learned>"),
        [_cost_row(one) for one in weighing["costs"]],
    )


def payback_cells(payback: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the cells of a broker that might take the bundle: use, use with it, gain, price."""
    if payback is None:
        return ("-",) * 5
    figures = (payback[key] for key in ("use", "useWith"))
    return (
        payback["resource"],
        *(f"{one:.3f}" for one in figures),
        *(f"{payback[key]:.4f}" for key in ("saving", "price")),
    )


def _use_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    reported, noise = (
        "-" if one[key] is None else f"{one[key]:.3f}" for key in ("reported", "noise")
    )
    predicted, background = (f"{one[key]:.3f}" for key in ("predicted", "background"))
    return one["resource"], reported, predicted, background, f"{one['speed']:.2f}", noise


def _cost_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        one["resource"],
        f"{one['usage']:.4g}",
        _UNITS[one["resource"]],
        f"{one['sd']:.2g}",
        _SOURCES[one["source"]],
        f"{one['learnedFraction']:.0%}",
    )


_CANDIDATES_SHOWN: Final = 20
_SCORES: Final = ("score>", "with it>")
_KINDS: Final[Mapping[str, str]] = {
    "move": "moved",
    "observed": "would have been moved (the leader only observes)",
    "placement": "placed",
    "drain": "moved off a draining broker",
    "unload": "unloaded",
    "left_alone": "left alone",
}


def print_account(account: Mapping[str, Any]) -> None:
    """Print an explanation, in the form of the admin REST."""
    parts = (_tasks(account), _decisions(account), _grounds(account))
    for text in (_headline(account), _load_line(account), *chain.from_iterable(parts)):
        _echo(text)
    weighing = account.get("weighing")
    if weighing is not None:
        _echo(weighing_line(weighing))
        broker = account["subject"] if account["kind"] == "broker" else account["owner"]
        print_weighing(weighing, broker)
    _print_candidates(account["candidates"])
    click.echo("")
    cluster = f"The cluster: {optimality_line(account['optimality'])}."
    for text in (*_in_force(account["inForce"]), cluster, _footer(account)):
        _echo(text)


def _print_candidates(candidates: Sequence[Mapping[str, Any]]) -> None:
    weighed = any(one.get("payback") is not None for one in candidates)
    columns = ("resource", "use>", "with it>", "saves>", "price>") if weighed else _SCORES
    cells = _payback_row if weighed else _candidate_row
    print_table(
        "Where it could go",
        ("broker", *columns, "verdict", "meaning"),
        [cells(one) for one in candidates[:_CANDIDATES_SHOWN]],
    )
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
        when = f"{age(one['ageS'])} old" if one["live"] else f"ended {_when(one['endedAtMs'])}"
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
        yield f"\n{_when(one['atMs'])}, epoch {one['epoch']}, {where}: {outcome} ({one['code']})"
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


def _candidate_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    scores = (f"{one[key]:.3f}" for key in ("score", "scoreWith"))
    return one["broker"], *scores, *_verdict(one)


def _payback_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return one["broker"], *payback_cells(one["payback"]), *_verdict(one)


def _verdict(one: Mapping[str, Any]) -> tuple[str, str]:
    return one["refused"] or "may take it", one["meaning"]


def _in_force(content: Mapping[str, Any]) -> Iterator[str]:
    for part in ("shedder", "placement"):
        settings = _settings(content[part]["settings"])
        yield f"{part.capitalize()} {content[part]['strategy']}: {settings or 'no settings'}"
    yield f"Planner: {_settings(content['planner'])}"
    yield f"Costs of bundles: {_cost(content['cost'])}"


def _cost(content: Mapping[str, Any]) -> str:
    if content["model"] != "learned":
        return "their shares of the traffic"
    return f"the learned cost model of {_when(content['madeAtMs'])}"


def _settings(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {_shown(value)}" for key, value in values.items())


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _footer(account: Mapping[str, Any]) -> str:
    rounds = (
        f"last round {account['lastRound']} at {_when(account['lastRoundAtMs'])}"
        if account["lastRound"]
        else "no round yet"
    )
    return f"Explained by {account['leader']}, leader of epoch {account['epoch']}; {rounds}."


def _when(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
