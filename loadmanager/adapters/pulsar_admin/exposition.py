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
    """One reading of a broker's metrics: counters of each topic, of which a partition is one.

    ``usages`` are in percent, of ``cpu``, ``memory``, ``directMemory``, ``bandwidth_in`` and
    ``bandwidth_out``, as the broker's load manager last measured them. ``started_s`` is in seconds
    since 1970 by the broker's clock.
    """

    topics: dict[str, Counters] = field(default_factory=dict)
    usages: dict[str, float] = field(default_factory=dict)
    cpu_seconds: float | None = None
    started_s: float | None = None


async def read_exposition(blocks: AsyncIterator[bytes]) -> Exposition:
    """Return the metrics in blocks of whole lines; raises the errors of reading them."""
    seen = Exposition()
    # Outgoing traffic of a topic is reported for each of its subscriptions.
    sums: dict[str, list[float]] = {}
    # Some versions also report a line for all subscriptions of a topic together.
    totals: dict[tuple[str, int], float] = {}
    async for block in blocks:
        for line in _LINE.finditer(block):
            direction, kind, process, usage, labels, text = line.groups()
            value = _number(text)
            if value is None:
                continue
            if process == b"process_start_time_seconds":
                seen.started_s = value
            elif process is not None:
                seen.cpu_seconds = value
            elif usage is not None:
                seen.usages[usage.decode()] = value
            else:
                _count(_PLACE[direction, kind], _labels(labels), value, sums, totals)
    for (topic, place), value in totals.items():
        sums[topic][place] = value
    seen.topics = {topic: Counters(*one) if any(one) else NOTHING for topic, one in sums.items()}
    return seen


def _count(
    place: int,
    labels: dict[str, str],
    value: float,
    sums: dict[str, list[float]],
    totals: dict[tuple[str, int], float],
) -> None:
    """Add the value of one line to the sums of its topic, or keep it as a total."""
    # The line of the subscription already counts its consumers.
    if "consumer_name" in labels or "consumer_id" in labels:
        return
    topic = _topic(labels)
    if topic is None:
        return  # Counters of a whole namespace: its topics are not exposed.
    counters = sums.setdefault(topic, [0.0, 0.0, 0.0, 0.0])
    if "subscription" in labels:
        counters[place] += value
    else:
        totals[topic, place] = value


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
