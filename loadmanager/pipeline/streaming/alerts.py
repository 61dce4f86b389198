"""Alerts of a stream of minutes: imbalance, saturation and silence, once each.

Pure: the minutes of one batch and what is remembered of those before go in, alerts and what
is to be remembered come out. The same batch again gives the same alerts again.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

from loadmanager.core.bounds import MINUTE_MS

IMBALANCE: Final = "imbalance"
SATURATED: Final = "saturated"
SILENT: Final = "silent"
LATE: Final = "late"

BEGAN: Final = "began"
ENDED: Final = "ended"
TOLD: Final = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When an alert is raised.

    ``max_over_mean``: the usage of the busiest broker over the mean of all. ``usage``: a
    broker's usage, a fraction. ``minutes``: how many in a row have to be above either.
    ``silent_minutes``: for so long there was no report of the whole cluster.
    """

    max_over_mean: float = 1.5
    usage: float = 0.9
    minutes: int = 5
    silent_minutes: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """A minute in which ``value`` is above a limit.

    ``subject`` is a broker, or empty for the cluster.
    """

    at_ms: int
    cluster: str
    kind: str
    subject: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert: ``event`` is `BEGAN`, `ENDED`, or `TOLD` of what neither begins nor ends."""

    at_ms: int
    cluster: str
    kind: str
    event: str
    subject: str
    since_ms: int
    minutes: int
    value: float | None

    def text(self) -> str:
        """Return a line for people."""
        who = f"{self.cluster} {self.subject}".strip()
        if self.kind == LATE:
            parts = f"{self.minutes} parts of minutes, {self.value:.0f} s"
            return f"{who}: {parts}, came after their minutes were over"
        value = "" if self.value is None else f", at most {self.value:.2f}"
        return f"{who}: {self.kind} {self.event}: {self.minutes} minutes{value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Minutes in a row above a limit."""

    cluster: str
    kind: str
    subject: str
    since_ms: int
    last_ms: int
    highest: float
    told: bool = False

    @property
    def minutes(self) -> int:
        """The number of minutes, from the first to the last."""
        return (self.last_ms - self.since_ms) // MINUTE_MS + 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What is remembered between batches: runs that go on, and each cluster's last minute."""

    runs: tuple[Run, ...] = ()
    last_ms: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {"runs": [asdict(run) for run in self.runs], "last_ms": dict(self.last_ms)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return what `to_json` gave."""
        return cls(
            runs=tuple(Run(**run) for run in content["runs"]), last_ms=dict(content["last_ms"])
        )


def watched(
    watch: Watch, minutes: Iterable[Minute], present: Iterable[tuple[str, int]], limits: Limits
) -> tuple[Watch, list[Alert]]:
    """Return what is to be remembered, and the alerts of one batch in the order of time.

    ``minutes`` are those above a limit. ``present`` are the minutes of each cluster that have
    any report, in the order of time: a run of a subject ends with the first of them that it is
    not in.
    """
    alerts: list[Alert] = []
    last_ms = dict(watch.last_ms)
    runs = {(run.cluster, run.kind, run.subject): run for run in watch.runs}
    by_minute: dict[tuple[str, int], list[Minute]] = {}
    for one in sorted(minutes, key=lambda one: (one.at_ms, one.cluster, one.kind, one.subject)):
        by_minute.setdefault((one.cluster, one.at_ms), []).append(one)
    for cluster, at_ms in present:
        alerts += _silence(cluster, last_ms.get(cluster), at_ms, limits)
        last_ms[cluster] = max(at_ms, last_ms.get(cluster, at_ms))
        above = by_minute.get((cluster, at_ms), [])
        alerts += _ended(runs, cluster, at_ms, {(one.kind, one.subject) for one in above})
        for one in above:
            alerts += _grown(runs, one, limits)
    return Watch(runs=tuple(runs.values()), last_ms=last_ms), alerts


def _silence(cluster: str, last_ms: int | None, at_ms: int, limits: Limits) -> Iterator[Alert]:
    between = 0 if last_ms is None else (at_ms - last_ms) // MINUTE_MS - 1
    if last_ms is not None and between >= limits.silent_minutes:
        yield silence(cluster, last_ms + MINUTE_MS, between, ENDED)


def silence(cluster: str, since_ms: int, minutes: int, event: str) -> Alert:
    """Return that there was no report of a cluster."""
    return Alert(
        at_ms=since_ms + minutes * MINUTE_MS,
        cluster=cluster,
        kind=SILENT,
        event=event,
        subject="",
        since_ms=since_ms,
        minutes=minutes,
        value=None,
    )


def _ended(
    runs: dict[tuple[str, str, str], Run], cluster: str, at_ms: int, above: set[tuple[str, str]]
) -> Iterator[Alert]:
    for key, run in sorted(runs.items()):
        if run.cluster != cluster or run.last_ms >= at_ms:
            continue
        if (run.kind, run.subject) in above and run.last_ms + MINUTE_MS == at_ms:
            continue
        del runs[key]
        if run.told:
            yield _of(run, run.last_ms + MINUTE_MS, ENDED)


def _grown(runs: dict[tuple[str, str, str], Run], one: Minute, limits: Limits) -> Iterator[Alert]:
    key = (one.cluster, one.kind, one.subject)
    run = runs.get(key) or Run(
        cluster=one.cluster,
        kind=one.kind,
        subject=one.subject,
        since_ms=one.at_ms,
        last_ms=one.at_ms,
        highest=one.value,
    )
    run = replace(run, last_ms=one.at_ms, highest=max(run.highest, one.value))
    if not run.told and run.minutes >= limits.minutes:
        run = replace(run, told=True)
        yield _of(run, one.at_ms + MINUTE_MS, BEGAN)
    runs[key] = run


def _of(run: Run, at_ms: int, event: str) -> Alert:
    return Alert(
        at_ms=at_ms,
        cluster=run.cluster,
        kind=run.kind,
        event=event,
        subject=run.subject,
        since_ms=run.since_ms,
        minutes=run.minutes,
        value=run.highest,
    )
