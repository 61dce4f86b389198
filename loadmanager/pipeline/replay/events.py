"""What a replay reads of history, in the order in which the leader learned it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from loadmanager.core.history.schema import SHORT_AND_LONG, TRAFFIC
from loadmanager.core.scores import FloatArray

LISTED: Final = (
    *(one.name for one in TRAFFIC),
    "topics",
    "producers",
    "consumers",
    "cache_bytes",
)
"""The columns of a ``report``'s numbers."""

AVERAGED: Final = (
    *(one.name for one in SHORT_AND_LONG),
    "short_samples",
    "long_samples",
    "topics",
)
"""The columns of the numbers of ``bundles``."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})
_NO_NUMBERS: Final[FloatArray] = np.zeros((0, 0))


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """One line of history, as far as a replay needs it.

    ``kind`` is report, tick, bundles, round, move, task or cut. ``body`` are the line's fields.
    Those of the bundles are apart: ``names``, and ``numbers`` of (bundles, columns) by
    `LISTED` or `AVERAGED`. A report comes before the first event that names it, and the
    ``bundles`` of a base round are one event, where the first of their lines was.
    """

    kind: str
    body: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    names: tuple[str, ...] = ()
    numbers: FloatArray = field(default_factory=lambda: _NO_NUMBERS)


def events_of(
    reports: Mapping[tuple[str, int], Mapping[str, Any]], lines: list[Mapping[str, Any]]
) -> Iterator[Event]:
    """Yield the events of one stretch from whole lines, as they stand in a leader's files.

    ``reports`` are the lines of reports by broker and ``reported_at_ms``, ``lines`` the
    leader's, in order.
    """
    given: set[tuple[str, int]] = set()
    bundles: dict[tuple[int, int], list[Mapping[str, Any]]] = {}
    for line in lines:
        if line["kind"] == "bundles":
            bundles.setdefault((line["epoch"], line["round"]), []).append(line)
    for line in lines:
        for name in _named(line):
            if name in reports and name not in given:
                given.add(name)
                yield _report(reports[name])
        if line["kind"] == "bundles" and line["part"] == 1:
            yield _bundles(bundles[line["epoch"], line["round"]])
        elif line["kind"] in {"tick", "round", "move", "task", "cut"}:
            yield Event(line["kind"], line)


def _named(line: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    if line["kind"] in {"tick", "round"}:
        columns = line["taken" if line["kind"] == "tick" else "brokers"]
        yield from zip(columns["broker"], columns["reported_at_ms"], strict=True)


def _report(line: Mapping[str, Any]) -> Event:
    columns = line["bundles"]
    numbers = np.array([columns[name] for name in LISTED], dtype=np.float64).T
    return Event("report", line, tuple(columns["bundle"]), numbers)


def _bundles(group: list[Mapping[str, Any]]) -> Event:
    names = tuple(name for line in group for name in line["bundles"]["bundle"])
    rows = [np.array([line["bundles"][name] for name in AVERAGED]).T for line in group]
    return Event("bundles", group[0], names, np.concatenate(rows).astype(np.float64))
