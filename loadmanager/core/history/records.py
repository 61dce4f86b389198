import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.averages import BundleAverages
from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskEvent, TaskState
from loadmanager.core.cluster import ClusterView
from loadmanager.core.history.schema import (
    BUNDLES,
    HAND_OVER,
    MOVE,
    REPORT,
    ROUND,
    SHORT_AND_LONG,
    TASK,
    TRAFFIC,
    VERSION,
    Kind,
)
from loadmanager.core.ids import BrokerId, BundleId
from loadmanager.core.load import BundleStats, LoadReport, ResourceUsage
from loadmanager.core.memory import ROUND_MEMORY, RoundMemory
from loadmanager.core.plan import Move
from loadmanager.core.planner import Plan, Planner
from loadmanager.core.projection import loads
from loadmanager.core.scores import RESOURCES, FloatArray, report_usage
from loadmanager.core.snapshot.codec import constraints_to_json, in_force, in_force_to_json

_STATS: Final = (
    ("msgs_in_per_s", "msgs_in_per_s"),
    ("msgs_out_per_s", "msgs_out_per_s"),
    ("bytes_in_per_s", "bytes_in_per_s"),
    ("bytes_out_per_s", "bytes_out_per_s"),
    ("topics", "topics"),
    ("producers", "producers"),
    ("consumers", "consumers"),
    ("cache_bytes", "cache_size_bytes"),
)
_TOTALS: Final = tuple(name for name, _ in _STATS[:7])
_ENCODER: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, check_circular=False)


@dataclass(frozen=True, slots=True)
class Origin:
    cluster: str
    writer: BrokerId
    instance: str


@dataclass(frozen=True, slots=True)
class Record:
    kind: str
    at_ms: int
    body: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def record_of(kind: Kind, at_ms: int, source: object = None, /, **given: Any) -> Record:
    """Return a record of ``kind``: each field as ``given``, else an attribute of ``source``.

    A line may lack the fields that lines of earlier versions lack.
    """
    body = {
        name: given[name] if name in given else getattr(source, name)
        for name in (one.name for one in kind.fields)
        if name in given or name not in kind.added or hasattr(source, name)
    }
    return Record(kind.name, at_ms, body)


def encode(record: Record, origin: Origin, seq: int) -> bytes:
    """Return the line with its line feed. Raises `ValueError`: a number is not finite."""
    line = {
        "schema": VERSION,
        "kind": record.kind,
        "cluster": origin.cluster,
        "writer": origin.writer,
        "instance": origin.instance,
        "seq": seq,
        "at_ms": record.at_ms,
        **record.body,
    }
    return (_ENCODER.encode(line) + "\n").encode()


def report_record(
    report: LoadReport,
    *,
    at_ms: int,
    due: str,
    interval_s: float | None,
    window_s: float | None,
    columns: Mapping[str, list[Any]] | None = None,
) -> Record:
    """Return the record of a published report.

    ``due`` is why it was published, ``interval_s`` the time since the previous report.
    ``columns`` are those of the report's bundles, if already computed.
    """
    if columns is None:
        columns = stats_columns(report.bundles.values())
    return record_of(
        REPORT,
        at_ms,
        report,
        due=due,
        interval_s=interval_s,
        window_s=window_s,
        **usages(*report_usage(report)),
        **_varied(report),
        **{name: sum(columns[name]) for name in _TOTALS},
        bundles={"bundle": list(report.bundles), **columns},
        gains=sorted(report.gains),
        losses=sorted(report.losses),
    )


def stats_columns(stats: Iterable[BundleStats]) -> dict[str, list[Any]]:
    every = list(stats)
    return {name: [getattr(one, ours) for one in every] for name, ours in _STATS}


def stats_of(columns: Mapping[str, Iterable[Any]]) -> Iterator[BundleStats]:
    fields = [ours for _, ours in _STATS]
    for row in zip(*(columns[name] for name, _ in _STATS), strict=True):
        yield BundleStats(**dict(zip(fields, row, strict=True)))


def usages(usage: Sequence[Any], limit: Sequence[Any]) -> dict[str, Any]:
    """Return usage and limit of each resource, given in the order of `core.scores.RESOURCES`."""
    found: dict[str, Any] = {}
    for name, used, most in zip(RESOURCES, usage, limit, strict=True):
        found[f"{name}_usage"] = used
        found[f"{name}_limit"] = most
    return found


def _varied(report: LoadReport) -> dict[str, float | None]:
    found: dict[str, float | None] = {}
    for name in RESOURCES:
        used: ResourceUsage | None = getattr(report, name)
        found[f"{name}_mean"] = None if used is None else used.mean
        found[f"{name}_variance"] = None if used is None else used.variance
    return found


def task_records(at_ms: int, task: BundleTask, now_s: float) -> list[Record]:
    """Return the record of a task in its new state, and of its hand-over if it has ended.

    ``at_ms`` is the current time on the leader's wall clock, ``now_s`` on the tasks' monotonic one.
    """
    record = record_of(
        TASK,
        at_ms,
        task,
        task=task.number,
        action=task.kind,
        bundles=list(task.bundles),
        asked_by=task.asked_by.word,
        age_s=now_s - task.proposed_at_s,
    )
    return [record, *_hand_over(at_ms, task, now_s)]


def _hand_over(at_ms: int, task: BundleTask, now_s: float) -> Iterator[Record]:
    own = task.asked_by is not AskedBy.RECONCILIATION
    if not (task.relocates and own and task.state.ended) or task.ordered_at_s is None:
        return
    if task.source == task.target:
        return

    def wall_ms(then_s: float) -> int:
        return at_ms - round(1000 * (now_s - then_s))

    done = task.state is TaskState.SERVING and task.ended_at_s is not None
    left = task.last_event is TaskEvent.TERM_ENDED
    seen = {}
    if task.pause is not None:
        seen["seen_before_ms"], seen["seen_after_ms"] = map(wall_ms, task.pause)
    yield record_of(
        HAND_OVER,
        at_ms,
        task,
        outcome="finished" if done else "left" if left else "replaced",
        ordered_at_ms=wall_ms(task.ordered_at_s),
        released_at_ms=None if task.released_at_s is None else wall_ms(task.released_at_s),
        acquired_at_ms=wall_ms(task.ended_at_s or now_s) if done else None,
        took_s=(task.ended_at_s or now_s) - task.ordered_at_s if done else None,
        **seen,
    )


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk


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
    round: int
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
        _round_record(facts, view, plan),
        *(
            move_record(
                move,
                outcome,
                view=view,
                planner=facts.planner,
                at_ms=facts.at_ms,
                epoch=facts.epoch,
                number=facts.round,
                move_number=first_move + position,
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
) -> Record:
    """Return the record of a move; ``number`` is that of the round, 0 between two rounds."""
    known = view.bundles.measured_row(move.bundle) is not None
    rates = view.short_rates(move.bundle).tolist() if known else [None] * len(TRAFFIC)
    scores = loads(view, planner.weights)
    shedder, placement = strategies_of(planner)
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


def _round_record(facts: RoundFacts, view: ClusterView, plan: Plan) -> Record:
    planner, scores = facts.planner, loads(view, facts.planner.weights)
    changed_ago_s = view.now_s - view.membership_changed_s
    base = facts.averages is not None
    shedder, placement = strategies_of(planner)
    return record_of(
        ROUND,
        facts.at_ms,
        facts,
        base=base,
        mode=planner.settings.mode.value,
        shedder=shedder,
        placement=placement,
        settings=_json(in_force_to_json(in_force(planner))),
        membership_changed_ago_s=max(changed_ago_s, 0.0) if np.isfinite(changed_ago_s) else None,
        departed_ago_s=[max(view.now_s - at_s, 0.0) for at_s in view.departures_s],
        moves=len(plan.moves),
        observed=len(plan.observed),
        bundles_known=int(np.count_nonzero(view.bundles.known)),
        mean_score=float(scores.mean()) if len(scores) else None,
        highest_score=float(scores.max()) if len(scores) else None,
        lowest_score=float(scores.min()) if len(scores) else None,
        brokers=_broker_columns(facts, view, scores),
        in_flight={"bundle": list(view.moved), "target": list(view.moved.values())},
        unowned=list(facts.unowned),
        refusals={
            "subject": [one.subject for one in plan.refusals],
            "reason": [one.reason.value for one in plan.refusals],
            "detail": [one.detail for one in plan.refusals],
        },
        memory=None if facts.memory is None else _json(ROUND_MEMORY.to_json(facts.memory)),
        constraints=_json(constraints_to_json(view.policies)) if base else None,
    )


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
        bundles = {
            "bundle": names,
            "owner": [view.listed_owner(name) for name in names],
            **{
                one.name: list(column)
                for one, column in zip(SHORT_AND_LONG, zip(*rates, strict=True), strict=True)
            },
            "short_samples": [one.short.samples for one in every],
            "long_samples": [one.long.samples for one in every],
            "topics": [one.topics for one in every],
        }
        yield record_of(BUNDLES, facts.at_ms, facts, part=part, parts=parts, bundles=bundles)


def _known(values: FloatArray) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))
