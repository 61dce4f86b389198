"""Counters of topics and usage of a broker, parsed from the stream of its ``/metrics/``.

Pulsar writes the text format of Prometheus. Only a few dozen metrics are needed; one regular
expression skips all other lines, because a large broker sends hundreds of megabytes.
"""

import re
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Final, NamedTuple

from loadmanager.core.bundle_traffic import Flow, TopicCounters

_LINE: Final = re.compile(
    rb"^(pulsar_(?:broker_)?(?:in|out)_(?:messages|bytes)_total"
    rb"|pulsar_replication_(?:rate|throughput)_out"
    rb"|process_cpu_seconds_total|process_start_time_seconds|jetty_stats_seconds"
    rb"|pulsar_lb_(?:cpu|memory|directMemory|bandwidth_in|bandwidth_out)_usage)"
    rb"\{([^\n]*)\} ([^\s]+)",
    re.MULTILINE,
)
_LABEL: Final = re.compile(rb'(?<!\w)(\w++)="((?:[^"\\]++|\\.)*+)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_MEANS: Final = {"n": "\n"}
_MOST_COUNTED: Final = 2.0**63


class Moment(NamedTuple):
    """When a page was made: on the broker's clock, and when it began to arrive, on ours."""

    at_s: float
    clock_s: float | None

    def since(self, before: "Moment") -> float:
        if (
            self.clock_s is not None
            and before.clock_s is not None
            and self.clock_s > before.clock_s
        ):
            return self.clock_s - before.clock_s
        return self.at_s - before.at_s


@dataclass(slots=True)
class Exposition:
    """One reading of a broker's metrics: counters of each topic, of which a partition is one.

    ``totals`` are the broker's own counters of bytes in and out, of all of its topics; None before
    4.0. ``usages`` are in percent, of ``cpu``, ``memory``, ``directMemory``, ``bandwidth_in`` and
    ``bandwidth_out``, as the broker's load manager last measured them. ``started_s`` is in seconds
    since 1970 by the broker's clock. ``clock_s`` is in seconds since its web service
    began, and ``at_s`` is when the page began to arrive, on the monotonic clock of this process.
    """

    topics: dict[str, TopicCounters] = field(default_factory=dict)
    totals: Flow | None = None
    usages: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float | None = None
    started_s: float | None = None
    clock_s: float | None = None
    at_s: float = 0.0

    @property
    def moment(self) -> Moment:
        return Moment(self.at_s, self.clock_s)


async def read_exposition(blocks: AsyncIterator[bytes]) -> Exposition:
    seen = Exposition()
    async for block in blocks:
        seen.at_s = seen.at_s or monotonic()
        for line in _LINE.finditer(block):
            metric, labels, text = line.groups()
            value = _number(text)
            if value is None:
                continue
            if metric == b"process_start_time_seconds":
                seen.started_s = value
            elif metric == b"process_cpu_seconds_total":
                seen.cpu_seconds = value
            elif metric == b"jetty_stats_seconds":
                seen.clock_s = value
            elif metric.startswith(b"pulsar_lb_"):
                seen.usages[metric[10:-6].decode()] = value
            elif metric.startswith(b"pulsar_broker_"):
                bytes_in, bytes_out = seen.totals or (0.0, 0.0)
                into = metric == b"pulsar_broker_in_bytes_total"
                seen.totals = bytes_in + into * value, bytes_out + (not into) * value
            else:
                _count(seen.topics, metric, _labels(labels), value)
    seen.at_s = seen.at_s or monotonic()
    return seen


def _count(
    topics: dict[str, TopicCounters], metric: bytes, labels: dict[str, str], value: float
) -> None:
    # The line of the subscription already counts its consumers.
    if "consumer_name" in labels or "consumer_id" in labels:
        return
    name = _topic(labels)
    if name is None:
        return  # Counters of a whole namespace: its topics are not exposed.
    topic = topics.get(name) or topics.setdefault(name, TopicCounters())
    if metric == b"pulsar_in_messages_total":
        topic.msgs_in = value
    elif metric == b"pulsar_in_bytes_total":
        topic.bytes_in = value
    else:
        flows, series = topic.out, labels.get("subscription", "")
        if metric.startswith(b"pulsar_replication_"):
            topic.replicated = flows = topic.replicated or {}
            series = labels.get("remote_cluster", "")
        msgs, size = flows.get(series, (0.0, 0.0))
        of_msgs = metric in {b"pulsar_out_messages_total", b"pulsar_replication_rate_out"}
        flows[sys.intern(series)] = (value, size) if of_msgs else (msgs, value)


def _labels(text: bytes) -> dict[str, str]:
    found = {}
    for name, value in _LABEL.findall(text):
        label = value.decode("utf-8", errors="replace")
        if "\\" in label:
            label = _ESCAPED.sub(lambda one: _MEANS.get(one[1], one[1]), label)
        found[name.decode()] = label
    return found


def _topic(labels: dict[str, str]) -> str | None:
    topic = labels.get("topic")
    if not topic or "://" not in topic:
        return None
    partition = labels.get("partition", "")
    return f"{topic}-partition-{partition}" if partition.isdigit() else topic


def _number(text: bytes) -> float | None:
    """Return a counter or gauge, None if negative, not finite or not a number."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < _MOST_COUNTED else None
