"""Values of the core from the line of a round."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from loadmanager.core.columns import BrokerColumns
from loadmanager.core.errors import MalformedContent
from loadmanager.core.history.schema import TRAFFIC
from loadmanager.core.ids import BrokerId
from loadmanager.core.load import BrokerUrls, LoadReport
from loadmanager.core.scores import RESOURCES, FloatArray
from loadmanager.core.snapshot.decoding import decode_snapshot
from loadmanager.core.snapshot.document import Snapshot
from loadmanager.core.wire.reports import report_to_json
from loadmanager.pipeline.replay.latest_reports import Report

_ANYBODY: Final = LoadReport(
    broker=BrokerId("any:0001"),
    urls=BrokerUrls(http_url=""),
    sidecar_url="",
    reported_at_ms=0,
    started_at_ms=0,
)
"""A snapshot needs at least one broker."""


def by_planner(body: Mapping[str, Any]) -> bool:
    """Return whether the planner decided a round; it did not with a strategy of before 0.4."""
    return bool(body["shedder"] != "greedy_rate")


def recorded_parts(body: Mapping[str, Any]) -> Snapshot:
    """Return a snapshot with the settings of a round, and a base's memory and constraints.

    Rounds that the planner did not decide have no settings.

    Raises:
        MalformedContent: one of them violates the format.
    """
    document: dict[str, Any] = {
        "takenAtMs": body["at_ms"],
        "brokers": {_ANYBODY.broker: report_to_json(_ANYBODY)},
    }
    where = f"round {body['round']} of epoch {body['epoch']}"
    for name in ("settings", *(("memory", "constraints") if body["base"] else ())):
        try:
            document[name] = json.loads(body[name])
        except (TypeError, ValueError):
            raise MalformedContent(where, f"{name} = {body[name]!r:.80}", "JSON") from None
    if not by_planner(body):
        document["settings"] = {}
    return decode_snapshot(where, json.dumps(document).encode())


def broker_columns(
    columns: Mapping[str, Any], reports: Sequence[Report], now_s: float
) -> BrokerColumns:
    """Return the brokers at the time of the round; ``columns`` are the lists of the line."""
    connections = [one.connections for one in reports]
    return BrokerColumns(
        names=tuple(BrokerId(name) for name in columns["broker"]),
        usage=_table(columns, [f"{name}_usage" for name in RESOURCES]),
        limit=_table(columns, [f"{name}_limit" for name in RESOURCES]),
        variance=np.full((len(reports), len(RESOURCES)), np.nan),
        traffic=_table(columns, [one.name for one in TRAFFIC]),
        long_msgs_per_s=_floats(columns["long_msgs_per_s"]),
        preallocated_msgs_per_s=_floats(columns["preallocated_msgs_per_s"]),
        load_ema=_floats(columns["load_ema"]),
        bytes_ema=_floats(columns["bytes_ema"]),
        seen_s=now_s - _floats(columns["age_s"]),
        topics=np.array(columns["topics"], dtype=np.int64),
        connections=np.array(connections, dtype=np.int64),
        draining=np.array(columns["draining"], dtype=np.bool_),
        persistent=np.array(columns["persistent_topics"], dtype=np.bool_),
        non_persistent=np.array(columns["non_persistent_topics"], dtype=np.bool_),
        versions=tuple(columns["version"]),
        started_at_ms=tuple(columns["started_at_ms"]),
    )


def _table(columns: Mapping[str, Any], names: Sequence[str]) -> FloatArray:
    found = np.array([columns[name] for name in names], dtype=np.float64)
    return found.reshape(len(names), -1).T.copy()


def _floats(values: Sequence[float | None]) -> FloatArray:
    """Return the values, NaN for null."""
    return np.array(values, dtype=np.float64)
