"""Alerts on a stream of minutes: imbalance, saturation and silence, each raised once.

Pure functions: input are the minutes of one batch and the state after the previous one, output are
alerts and the new state. Repeating a batch gives the same alerts.
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
SINGLE: Final = "told"


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """When an alert is raised.

    ``max_over_mean`` is the limit of the highest usage of a broker over the mean, ``usage`` that of
    the usage of a broker (a fraction). ``minutes`` in a row have to be above a limit.
    ``silent_minutes`` without any report of a cluster count as silence.
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
    """An alert: ``event`` is `BEGAN`, `ENDED`, or `SINGLE` for single events."""

    at_ms: int
    cluster: str
    kind: str
    event: str
    subject: str
    since_ms: int
    minutes: int
    value: float | None

    def text(self) -> str:
        """Return the alert as a line of text."""
        who = f"{self.cluster} {self.subject}".strip()
        if self.kind == LATE:
            parts = f"{self.minutes} parts of minutes, {self.value:.0f} s"
            return f"{who}: {parts}, came after their minutes were over"
        value = "" if self.value is None else f", at most {self.value:.2f}"
        return f"{who}: {self.kind} {self.event}: {self.minutes} minutes{value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Consecutive minutes above a limit; ``told`` is whether an alert was raised."""

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
    """The state between batches: ongoing runs, and the last minute of each cluster."""

    runs: tuple[Run, ...] = ()
    last_ms: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the state as JSON."""
        return {"runs": [asdict(run) for run in self.runs], "last_ms": dict(self.last_ms)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Self:
        """Return the state that `to_json` returned."""
        return cls(
            runs=tuple(Run(**run) for run in content["runs"]), last_ms=dict(content["last_ms"])
        )


def watched(
    watch: Watch, minutes: Iterable[Minute], present: Iterable[tuple[str, int]], limits: Limits
) -> tuple[Watch, list[Alert]]:
    """Return the new state, and the alerts of one batch in order of time.

    ``minutes`` are those above a limit. ``present`` are the minutes of each cluster with any
    report, in order of time: a run ends at the first of them that it does not include.
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
    """Return the alert that a cluster sent no report."""
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
