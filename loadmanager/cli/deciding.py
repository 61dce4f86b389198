"""What ``loadmanager decide`` prints: rounds with moves, brokers before and after, and reasons."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from loadmanager.cli.options import print_json
from loadmanager.cli.text_tables import print_table
from loadmanager.core.cluster import ClusterView
from loadmanager.core.cost import CostDocument
from loadmanager.core.cost.document import decode_costs
from loadmanager.core.plan import Move, Refusal
from loadmanager.core.planner import Planner
from loadmanager.core.projection import has_capacities, loads
from loadmanager.core.reason_texts import sentence
from loadmanager.core.snapshot import Round, Snapshot, in_force


def costs_for(snapshot: Snapshot, wanted: str | None) -> CostDocument | None:
    """Return the cost model of a file, None for "none"; by default that of the snapshot."""
    if wanted is not None:
        return None if wanted == "none" else decode_costs(wanted, Path(wanted).read_bytes())
    if snapshot.costs is None and snapshot.in_force.cost.get("model") == "learned":
        text = "the leader decided by a learned cost model, which is not in the snapshot"
        click.echo(f"{text}; give it with --cost-model", err=True)
    return snapshot.costs


def print_decision(
    snapshot: Snapshot, planner: Planner, done: Sequence[Round], seed: int, *, as_json: bool
) -> None:
    """Print the rounds that a planner decided on a snapshot."""
    in_use, mode = in_force(planner), planner.settings.mode.value
    if as_json:
        document = {
            "shedder": None if in_use.shedder is None else in_use.shedder.strategy,
            "placement": None if in_use.placement is None else in_use.placement.strategy,
            "mode": mode,
            "cost": dict(in_use.cost),
            "seed": seed,
            "leftOut": list(snapshot.left_out),
            "rounds": [_round(number, one, planner) for number, one in enumerate(done, 1)],
        }
        print_json(document)
        return
    shedder, placement = type(planner.shedder).__name__, type(planner.placement).__name__
    click.echo(f"{shedder}, {placement}, {mode} mode")
    for number, one in enumerate(done, 1):
        if len(done) > 1:
            click.echo(f"\nRound {number} of {len(done)}")
        _print_round(one, planner)


def _round(number: int, one: Round, planner: Planner) -> dict[str, Any]:
    """Return a round as JSON; scores are fractions, 1.0 is a full broker."""
    observed = set(one.plan.observed)
    return {
        "round": number,
        "scoredBy": _scored_by(one.before, planner),
        "before": _extremes(one.before, planner),
        "after": _extremes(one.after, planner),
        "moves": [
            {
                "bundle": move.bundle,
                "source": move.source,
                "target": move.target,
                "cause": move.cause.value,
                "msgsPerS": _traffic(one, move)[0],
                "bytesPerS": _traffic(one, move)[1],
                "onlyObserved": move in observed,
            }
            for move in one.moves
        ],
        "leftAlone": [
            {
                "subject": refusal.subject,
                "reason": refusal.reason.value,
                "detail": refusal.detail,
                "meaning": sentence(refusal.reason),
            }
            for refusal in one.plan.refusals
        ],
        "brokers": [
            {"broker": name, "before": before, "after": after}
            for name, before, after in _brokers(one, planner)
        ],
    }


def _print_round(one: Round, planner: Planner) -> None:
    count = len(one.moves)
    word = "observed" if one.plan.observed else "move" if count == 1 else "moves"
    print_table(
        f"{count} {word}",
        ("bundle", "from", "to", "cause", "msgs/s>", "kB/s>"),
        [_move_row(one, move) for move in one.moves],
    )
    if not count:
        click.echo("\nNothing moves.")
    print_table(
        f"Brokers, by {_scored_by(one.before, planner)}",
        ("broker", "before>", "after>", "bundles>", "after>", "msgs/s>", "after>"),
        [_broker_row(*row) for row in _brokers(one, planner)],
    )
    before, after = _extremes(one.before, planner), _extremes(one.after, planner)
    click.echo(
        f"\nmax {before['max']:.3f} -> {after['max']:.3f}, "
        f"mean {before['mean']:.3f} -> {after['mean']:.3f}, "
        f"max/mean {before['maxOverMean']:.3f} -> {after['maxOverMean']:.3f}"
    )
    print_table(
        "Left alone",
        ("what", "reason", "numbers", "meaning"),
        [_refusal_row(refusal) for refusal in one.plan.refusals],
    )


def _move_row(one: Round, move: Move) -> tuple[object, ...]:
    msgs_per_s, bytes_per_s = _traffic(one, move)
    source = move.source or "(no owner)"
    rates = f"{msgs_per_s:.0f}", f"{bytes_per_s / 1000:.1f}"
    return move.bundle, source, move.target, move.cause.value, *rates


def _broker_row(name: str, before: dict[str, Any], after: dict[str, Any]) -> tuple[object, ...]:
    return (
        name,
        f"{before['score']:.3f}",
        f"{after['score']:.3f}",
        before["bundles"],
        after["bundles"],
        f"{before['msgsPerS']:.0f}",
        f"{after['msgsPerS']:.0f}",
    )


def _refusal_row(refusal: Refusal) -> tuple[object, ...]:
    subject = refusal.subject or "(the round)"
    return subject, refusal.reason.value, refusal.detail, sentence(refusal.reason)


def _brokers(one: Round, planner: Planner) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    sides = [list(_standings(view, planner)) for view in (one.before, one.after)]
    yield from zip(one.before.brokers.names, *sides, strict=True)


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


def _scored_by(view: ClusterView, planner: Planner) -> str:
    if has_capacities(view, planner.weights):
        return "the fullest of their weighted resources"
    return "message rate relative to the busiest, for capacities are unknown"


def _traffic(one: Round, move: Move) -> tuple[float, float]:
    rates = one.before.short_rates(move.bundle)
    return float(rates[:2].sum()), float(rates[2:].sum())
