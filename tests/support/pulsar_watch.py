"""What happens to a real cluster meanwhile: brokers' rates, moved bundles, clients' pauses."""

import json
import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.request import urlopen

from pulsar_traffic import Sends
from real_pulsar import RealPulsar, lies_in

LOOK_EVERY_S: Final = 0.5
COUNT_EVERY_S: Final = 5.0
WINDOW_S: Final = 10.0
_AROUND_S: Final = 1.0
_COUNTED: Final = re.compile(
    r'^pulsar_in_messages_total\{[^}]*topic="(persistent://[^"]*)"[^}]*\} (\S+)', re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Moved:
    bundle: str
    source: str
    target: str
    before_s: float
    after_s: float


@dataclass(slots=True)
class Watch:
    """What was seen so far; times are of the monotonic clock.

    Attributes:
        counts: of each reading, the messages that each broker has counted for each topic.
        moved: each change of a bundle's broker.
    """

    cluster: RealPulsar
    namespace: str
    counts: list[tuple[float, list[dict[str, float]]]] = field(default_factory=list)
    moved: list[Moved] = field(default_factory=list)
    _served: dict[str, tuple[str, float]] = field(default_factory=dict)

    def look(self) -> None:
        now_s = time.monotonic()
        for number, name in enumerate(self.cluster.brokers):
            for bundle in self.cluster.owned(number):
                if not bundle.startswith(f"{self.namespace}/"):
                    continue
                before, seen_s = self._served.get(bundle, (name, now_s))
                if before != name:
                    self.moved.append(Moved(bundle, before, name, seen_s, time.monotonic()))
                self._served[bundle] = (name, now_s)

    def count(self) -> None:
        found = []
        for name in self.cluster.brokers:
            with urlopen(f"http://{name}/metrics/", timeout=60) as reply:
                text = reply.read().decode()
            topics = ((topic, float(value)) for topic, value in _COUNTED.findall(text))
            inside = f"persistent://{self.namespace}/"
            found.append({topic: value for topic, value in topics if topic.startswith(inside)})
        self.counts.append((time.monotonic(), found))

    def max_over_mean(self) -> list[tuple[float, float]]:
        found = []
        for now_s, now in self.counts:
            older = [one for one in self.counts if one[0] <= now_s - WINDOW_S + COUNT_EVERY_S / 2]
            if not older:
                continue
            rates = [_grown(then, new) for then, new in zip(older[-1][1], now, strict=True)]
            if sum(rates):
                found.append((now_s, max(rates) / (sum(rates) / len(rates))))
        return found

    def pauses_s(self, sends: Sends) -> list[float]:
        found = []
        for one in self.moved:
            gaps = [
                until_s - since_s
                for topic, since_s, until_s in list(sends.gaps)
                if until_s >= one.before_s - _AROUND_S
                and since_s <= one.after_s + _AROUND_S
                and lies_in(topic, one.bundle)
            ]
            found.append(max(gaps, default=0.0))
        return found


def _grown(then: dict[str, float], now: dict[str, float]) -> float:
    """Return what was counted between; a topic that was loaded again counts from zero."""
    before = {topic: then.get(topic, 0.0) for topic in now}
    return sum(
        value - before[topic] if value >= before[topic] else value for topic, value in now.items()
    )


@contextmanager
def watching(cluster: RealPulsar, namespace: str) -> Iterator[Watch]:
    """Watch from a thread of its own until the end of the block."""
    watch, over = Watch(cluster, namespace), threading.Event()

    def run() -> None:
        next_count_s = time.monotonic()
        while not over.wait(LOOK_EVERY_S):
            try:
                watch.look()
                if time.monotonic() >= next_count_s:
                    next_count_s = max(next_count_s, time.monotonic() - 1) + COUNT_EVERY_S
                    watch.count()
            except (OSError, json.JSONDecodeError):
                # A broker that is killed meanwhile does not answer.
                continue

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()


def quantile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that so large a share does not exceed, None of nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else None
