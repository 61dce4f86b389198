import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import BundleAverages
from loadmanager.core.cluster import ClusterView
from loadmanager.core.history.kinds import MOVE
from loadmanager.core.history.records import Record, chunks, record_of, usages
from loadmanager.core.history.schema import SHORT_AND_LONG, TRAFFIC
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.plan import Move
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.projection import loads
from loadmanager.core.round_memory import ROUND_MEMORY, RoundMemory
from loadmanager.core.scores import FloatArray
from loadmanager.core.snapshot.codec import constraints_to_json, in_force, in_force_to_json

BUNDLES_PER_LINE: Final = 1000
"""Enough to read a line at once, and few enough not to delay the writer."""

_UNKNOWN: Final[Mapping[BrokerId, int]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """Facts of a round besides its view and its plan.

    ``memory`` is the memory before the round, with times in seconds on the wall clock, and
    ``averages`` are those of every bundle; both are None unless the round is a base, from which
    a replay can begin. ``tick`` is the number of ticks before the round. ``reported_at_ms``
    identifies the report of each broker in the view. ``not_ordered`` are moves whose orders do
    not stand.
    """

    at_ms: int
    epoch: int
    number: int
    outcome: str
    took_s: float | None
    planner: Planner
    steering: str
    tick: int | None = None
    session_doubtful: bool = False
    tick_interval_s: float | None = None
    unowned: Sequence[BundleId] = ()
    reported_at_ms: Mapping[BrokerId, int] = field(default_factory=lambda: _UNKNOWN)
    memory: RoundMemory | None = None
    averages: Mapping[BundleId, BundleAverages] | None = None
    not_ordered: Collection[BundleId] = ()


def strategies_of(planner: Planner) -> tuple[str, str]:
    return type(planner.shedder).__name__, type(planner.placement).__name__


def round_records(
    facts: RoundFacts, view: ClusterView, plan: Plan, first_move: int
) -> list[Record]:
    """Return the lines of a round and of its moves.

    ``first_move`` is the number of its first move in the term. If the round is a base, the lines
    of its bundles must precede these: see `bundles_records`.
    """
    moves = [
        (move, _outcome(facts, move, ordered=ordered))
        for ordered, group in ((True, plan.moves), (False, plan.observed))
        for move in group
    ]
    return [
        Record("round", facts.at_ms, _round_body(facts, view, plan)),
        *(
            move_record(
                move,
                outcome,
                view=view,
                planner=facts.planner,
                at_ms=facts.at_ms,
                epoch=facts.epoch,
                number=facts.number,
                move_number=first_move + position,
                strategies=strategies_of(facts.planner),
            )
            for position, (move, outcome) in enumerate(moves)
        ),
    ]


def move_record(
    move: Move,
    outcome: str,
    *,
    view: ClusterView,
    planner: Planner,
    at_ms: int,
    epoch: int,
    number: int,
    move_number: int,
    strategies: tuple[str, str] | None = None,
) -> Record:
    """Return the record of a move; ``number`` is that of the round, 0 between two rounds.

    ``strategies`` are given if they are not the planner's.
    """
    known = view.bundles.measured_row(move.bundle) is not None
    rates = view.short_rates(move.bundle).tolist() if known else [None] * len(TRAFFIC)
    scores = loads(view, planner.weights)
    shedder, placement = strategies or strategies_of(planner)
    return record_of(
        MOVE,
        at_ms,
        move,
        epoch=epoch,
        round=number,
        move=move_number,
        outcome=outcome,
        shedder=shedder,
        placement=placement,
        **{one.name: value for one, value in zip(TRAFFIC, rates, strict=True)},
        source_score=_score(view, scores, move.source),
        target_score=_score(view, scores, move.target),
    )


def _outcome(facts: RoundFacts, move: Move, *, ordered: bool) -> str:
    if not ordered:
        return "observed"
    if move.bundle in facts.not_ordered:
        return "failed"
    return "placed" if move.source is None else "moved"


def _score(view: ClusterView, scores: FloatArray, broker: BrokerId | None) -> float | None:
    row = None if broker is None else view.brokers.index.get(broker)
    return None if row is None else float(scores[row])


def _round_body(facts: RoundFacts, view: ClusterView, plan: Plan) -> dict[str, Any]:
    planner, scores = facts.planner, loads(view, facts.planner.weights)
    changed_ago_s = view.now_s - view.membership_changed_s
    base = facts.averages is not None
    settings = in_force(planner)
    shedder, placement = strategies_of(planner)
    return {
        "epoch": facts.epoch,
        "round": facts.number,
        "tick": facts.tick,
        "outcome": facts.outcome,
        "took_s": facts.took_s,
        "base": base,
        "steering": facts.steering,
        "mode": planner.settings.mode.value,
        "shedder": shedder,
        "placement": placement,
        "settings": _json(in_force_to_json(settings)),
        "session_doubtful": facts.session_doubtful,
        "tick_interval_s": facts.tick_interval_s,
        "membership_changed_ago_s": (
            max(changed_ago_s, 0.0) if np.isfinite(changed_ago_s) else None
        ),
        "departed_ago_s": [max(view.now_s - at_s, 0.0) for at_s in view.departures_s],
        "moves": len(plan.moves),
        "observed": len(plan.observed),
        "bundles_known": int(np.count_nonzero(view.bundles.known)),
        "mean_score": float(scores.mean()) if len(scores) else None,
        "highest_score": float(scores.max()) if len(scores) else None,
        "lowest_score": float(scores.min()) if len(scores) else None,
        "brokers": _broker_columns(facts, view, scores),
        "in_flight": {"bundle": list(view.moved), "target": list(view.moved.values())},
        "unowned": list(facts.unowned),
        "refusals": {
            "subject": [one.subject for one in plan.refusals],
            "reason": [one.reason.value for one in plan.refusals],
            "detail": [one.detail for one in plan.refusals],
        },
        "memory": _json(ROUND_MEMORY.to_json(facts.memory)) if facts.memory is not None else None,
        "constraints": _json(constraints_to_json(view.policies)) if base else None,
    }


def _broker_columns(facts: RoundFacts, view: ClusterView, scores: FloatArray) -> dict[str, Any]:
    brokers = view.brokers
    return {
        "broker": list(brokers.names),
        "reported_at_ms": [facts.reported_at_ms.get(name) for name in brokers.names],
        "started_at_ms": list(brokers.started_at_ms),
        "version": list(brokers.versions),
        "age_s": np.maximum(view.age_s, 0.0).tolist(),
        "score": scores.tolist(),
        "load_ema": _known(brokers.load_ema),
        "bytes_ema": _known(brokers.bytes_ema),
        **usages(brokers.usage.T.tolist(), brokers.limit.T.tolist()),
        **{
            one.name: column
            for one, column in zip(TRAFFIC, brokers.traffic.T.tolist(), strict=True)
        },
        "long_msgs_per_s": brokers.long_msgs_per_s.tolist(),
        "preallocated_msgs_per_s": brokers.preallocated_msgs_per_s.tolist(),
        "topics": brokers.topics.tolist(),
        "bundles": view.owned.counts.tolist(),
        "draining": brokers.draining.tolist(),
        "persistent_topics": brokers.persistent.tolist(),
        "non_persistent_topics": brokers.non_persistent.tolist(),
    }


def bundles_records(facts: RoundFacts, view: ClusterView) -> Iterator[Record]:
    averages = facts.averages or {}
    parts = -(-len(averages) // BUNDLES_PER_LINE)
    for part, names in enumerate(chunks(averages, BUNDLES_PER_LINE), start=1):
        every = [averages[name] for name in names]
        rates = [(*one.short.rates.row(), *one.long.rates.row()) for one in every]
        body = {
            "epoch": facts.epoch,
            "round": facts.number,
            "tick": facts.tick,
            "part": part,
            "parts": parts,
            "bundles": {
                "bundle": names,
                "owner": [view.listed_owner(name) for name in names],
                **{
                    one.name: list(column)
                    for one, column in zip(SHORT_AND_LONG, zip(*rates, strict=True), strict=True)
                },
                "short_samples": [one.short.samples for one in every],
                "long_samples": [one.long.samples for one in every],
                "topics": [one.topics for one in every],
            },
        }
        yield Record("bundles", facts.at_ms, body)


def _known(values: FloatArray) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
