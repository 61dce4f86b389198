import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

from loadmanager.core.bundle_task import AskedBy, BundleTask, TaskEvent, TaskState
from loadmanager.core.history.kinds import (
    HAND_OVER,
    REPORT,
    TASK,
)
from loadmanager.core.history.schema import VERSION, Kind
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import BundleStats, LoadReport, ResourceUsage
from loadmanager.core.scores import RESOURCES, report_usage

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
