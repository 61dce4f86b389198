"""What ``loadmanager decide`` prints: rounds with moves, brokers before and after, and reasons."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click
import numpy as np

from loadmanager.cli.options import Columns, print_json, print_records, print_table
from loadmanager.core.cluster import ClusterView
from loadmanager.core.planner import Planner
from loadmanager.core.playback import Round
from loadmanager.core.projection import has_capacities, loads
from loadmanager.core.snapshot.codec import in_force
from loadmanager.core.snapshot.document import Snapshot


def print_decision(
    snapshot: Snapshot, planner: Planner, done: Sequence[Round], seed: int, *, as_json: bool
) -> None:
    """Print the rounds that a planner decided on a snapshot."""
    in_use, mode = in_force(planner), planner.settings.mode.value
    rounds = [_round(number, one, planner) for number, one in enumerate(done, 1)]
    if as_json:
        document = {
            "shedder": None if in_use.shedder is None else in_use.shedder.strategy,
            "placement": None if in_use.placement is None else in_use.placement.strategy,
            "mode": mode,
            "seed": seed,
            "leftOut": list(snapshot.left_out),
            "rounds": rounds,
        }
        print_json(document)
        return
    shedder, placement = type(planner.shedder).__name__, type(planner.placement).__name__
    click.echo(f"{shedder}, {placement}, {mode} mode")
    for one in rounds:
        if len(rounds) > 1:
            click.echo(f"\nRound {one['round']} of {len(rounds)}")
        _print_round(one)


def _round(number: int, one: Round, planner: Planner) -> dict[str, Any]:
    """Return a round as JSON; scores are fractions, 1.0 is a full broker."""
    observed = set(one.plan.observed)
    by_usage = has_capacities(one.before, planner.weights)
    return {
        "round": number,
        "scoredBy": "the fullest of their weighted resources"
        if by_usage
        else "message rate relative to the busiest, for capacities are unknown",
        "before": _extremes(one.before, planner),
        "after": _extremes(one.after, planner),
        "moves": [
            {
                "bundle": move.bundle,
                "source": move.source,
                "target": move.target,
                "cause": move.cause.value,
                "msgsPerS": float(rates[:2].sum()),
                "bytesPerS": float(rates[2:].sum()),
                "onlyObserved": move in observed,
            }
            for move, rates in ((move, one.before.short_rates(move.bundle)) for move in one.moves)
        ],
        "leftAlone": [
            {
                "subject": refusal.subject,
                "reason": refusal.reason.value,
                "detail": refusal.detail,
                "meaning": refusal.reason.meaning,
            }
            for refusal in one.plan.refusals
        ],
        "brokers": [
            {"broker": name, "before": before, "after": after}
            for name, before, after in zip(
                one.before.brokers.names,
                _standings(one.before, planner),
                _standings(one.after, planner),
                strict=True,
            )
        ],
    }


_MOVE_COLUMNS: Final[Columns] = {
    "bundle": "{bundle}",
    "from": lambda move: move["source"] or "(no owner)",
    "to": "{target}",
    "cause": "{cause}",
    "msgs/s>": "{msgsPerS:.0f}",
    "kB/s>": lambda move: f"{move['bytesPerS'] / 1000:.1f}",
}
_REFUSAL_COLUMNS: Final[Columns] = {
    "what": lambda one: one["subject"] or "(the round)",
    "reason": "{reason}",
    "numbers": "{detail}",
    "meaning": "{meaning}",
}
_FIGURES: Final = (("score", ".3f"), ("bundles", ""), ("msgsPerS", ".0f"))
_BROKER_COLUMNS: Final = ("broker", "before>", "after>", "bundles>", "after>", "msgs/s>", "after>")


def _print_round(found: Mapping[str, Any]) -> None:
    moves, before, after = found["moves"], found["before"], found["after"]
    observed = any(move["onlyObserved"] for move in moves)
    word = "observed" if observed else "move" if len(moves) == 1 else "moves"
    print_records(f"{len(moves)} {word}", _MOVE_COLUMNS, moves)
    if not moves:
        click.echo("\nNothing moves.")
    rows = [
        (
            one["broker"],
            *(f"{one[when][key]:{form}}" for key, form in _FIGURES for when in ("before", "after")),
        )
        for one in found["brokers"]
    ]
    print_table(f"Brokers, by {found['scoredBy']}", _BROKER_COLUMNS, rows)
    click.echo(
        f"\nmax {before['max']:.3f} -> {after['max']:.3f}, "
        f"mean {before['mean']:.3f} -> {after['mean']:.3f}, "
        f"max/mean {before['maxOverMean']:.3f} -> {after['maxOverMean']:.3f}"
    )
    print_records("Left alone", _REFUSAL_COLUMNS, found["leftAlone"])


def _standings(view: ClusterView, planner: Planner) -> Iterator[dict[str, Any]]:
    scores = loads(view, planner.weights).tolist()
    rows = zip(view.brokers.names, scores, view.brokers.traffic.tolist(), strict=True)
    for name, score, traffic in rows:
        yield {
            "score": score,
            "bundles": len(view.bundles_of(name)),
            "msgsPerS": traffic[0] + traffic[1],
            "bytesPerS": traffic[2] + traffic[3],
        }


def _extremes(view: ClusterView, planner: Planner) -> dict[str, float]:
    scores = loads(view, planner.weights)
    most, mean = float(np.max(scores)), float(np.mean(scores))
    return {"max": most, "mean": mean, "maxOverMean": most / mean if mean > 0 else 1.0}
