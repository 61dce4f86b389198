"""Counters of topics and usage of a broker, parsed from the stream of its ``/metrics/``.

Pulsar writes the text format of Prometheus. Only a few dozen metrics are needed; one regular
expression skips all other lines, because a large broker sends hundreds of megabytes.
"""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

from loadmanager.core.bundle_traffic import NOTHING, Counters

_LINE: Final = re.compile(
    rb"^(?:pulsar_(in|out)_(messages|bytes)_total|(process_cpu_seconds_total|process_start_time_seconds)"
    rb"|pulsar_lb_(cpu|memory|directMemory|bandwidth_in|bandwidth_out)_usage)"
    rb"\{([^\n]*)\} ([^\s]+)",
    re.MULTILINE,
)
_LABEL: Final = re.compile(rb'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_MEANS: Final = {"n": "\n"}
_MOST_COUNTED: Final = 2.0**63
_PLACE: Final = {
    (b"in", b"messages"): 0,
    (b"out", b"messages"): 1,
    (b"in", b"bytes"): 2,
    (b"out", b"bytes"): 3,
}


@dataclass(slots=True)
class Exposition:
    """One reading of a broker's metrics.

    Attributes:
        topics: the counters of each topic, by its full name (a partition is a topic).
        usages: percent of ``cpu``, ``memory``, ``directMemory``, ``bandwidth_in``,
            ``bandwidth_out``, as the broker's load manager last measured them.
        cpu_seconds: CPU time of the broker's process since its start, None if not reported.
        started_s: time of that start, in seconds since 1970 by the broker's clock, None if not
            reported.
    """

    topics: dict[str, Counters] = field(default_factory=dict)
    usages: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float | None = None
    started_s: float | None = None


async def read_exposition(blocks: AsyncIterator[bytes]) -> Exposition:
    """Return the metrics in blocks of whole lines; raises the errors of reading them."""
    found = _Reading()
    async for block in blocks:
        for match in _LINE.finditer(block):
            found.take(match)
    return found.done()


class _Reading:
    """Sums up lines. Outgoing traffic of a topic is reported for each of its subscriptions."""

    def __init__(self) -> None:
        self._seen = Exposition()
        self._sums: dict[str, list[float]] = {}
        # Some versions also report a line for all subscriptions of a topic together.
        self._totals: dict[tuple[str, int], float] = {}

    def take(self, line: re.Match[bytes]) -> None:
        direction, kind, process, usage, labels, text = line.groups()
        value = _number(text)
        if value is None:
            return
        if process == b"process_start_time_seconds":
            self._seen.started_s = value
        elif process is not None:
            self._seen.cpu_seconds = value
        elif usage is not None:
            self._seen.usages[usage.decode()] = value
        else:
            self._count(_PLACE[direction, kind], _labels(labels), value)

    def _count(self, place: int, labels: dict[str, str], value: float) -> None:
        # The line of the subscription already counts its consumers.
        if "consumer_name" in labels or "consumer_id" in labels:
            return
        topic = _topic(labels)
        if topic is None:
            return  # Counters of a whole namespace: its topics are not exposed.
        sums = self._sums.setdefault(topic, [0.0, 0.0, 0.0, 0.0])
        if "subscription" in labels:
            sums[place] += value
        else:
            self._totals[topic, place] = value

    def done(self) -> Exposition:
        for (topic, place), value in self._totals.items():
            self._sums[topic][place] = value
        self._seen.topics = {
            topic: Counters(*sums) if any(sums) else NOTHING for topic, sums in self._sums.items()
        }
        return self._seen


def _labels(text: bytes) -> dict[str, str]:
    found = {}
    for name, value in _LABEL.findall(text):
        label = value.decode("utf-8", errors="replace")
        if "\\" in label:
            label = _ESCAPED.sub(lambda one: _MEANS.get(one[1], one[1]), label)
        found[name.decode()] = label
    return found


def _topic(labels: dict[str, str]) -> str | None:
    """Return the full name of a line's topic; the partition may be in a separate label."""
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
