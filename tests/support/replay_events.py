"""Events of a replay made of whole lines of history, as Spark makes them of tables."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from loadmanager.pipeline.replay.events import AVERAGED, LISTED, Event


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
