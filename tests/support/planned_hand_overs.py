"""What brokers and clients wrote down of bundles going from one broker to the next."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from tests.testbed.checker.publishes import publishes_in

HTTP_OK = 200


@dataclass(frozen=True, slots=True)
class HandOver:
    """One bundle from broker to broker, by the monotonic clock of the one machine they share.

    ``asked_s`` is when the former owner was told to stop, ``stopped_s`` when its last
    request under way was finished, ``served_s`` when the next owner began to serve.
    """

    bundle: str
    source: str
    target: str
    asked_s: float
    stopped_s: float
    served_s: float

    @property
    def service_s(self) -> float:
        """The service's own part: from the old owner having stopped to the new one serving.

        What a broker needs to close a bundle's topics lies before it, and the in-memory
        broker needs no time to open them.
        """
        return self.served_s - self.stopped_s

    @property
    def unserved_s(self) -> float:
        return self.served_s - self.asked_s


@dataclass(frozen=True, slots=True)
class _Serving:
    broker: str
    start_s: float
    asked_s: float
    end_s: float
    why: str


def hand_overs_in(records: Iterable[Path]) -> list[HandOver]:
    """Return every hand-over that these brokers wrote down, in order of the new owner's start."""
    servings: dict[str, list[_Serving]] = defaultdict(list)
    for record in records:
        for bundle, serving in _servings(record):
            servings[bundle].append(serving)
    found = [
        HandOver(bundle, old.broker, new.broker, old.asked_s, old.end_s, new.start_s)
        for bundle, of_bundle in servings.items()
        for old, new in _successive(of_bundle)
        if old.why == "unloaded" and old.broker != new.broker
    ]
    return sorted(found, key=lambda one: one.served_s)


def _successive(servings: list[_Serving]) -> Iterable[tuple[_Serving, _Serving]]:
    ordered = sorted(servings, key=lambda one: one.start_s)
    return pairwise(ordered)


def _servings(record: Path) -> Iterable[tuple[str, _Serving]]:
    broker, since_s, asked_s = "", {}, {}
    for line in record.read_text().split("\n")[:-1]:
        change = json.loads(line)
        match change["event"]:
            case "start":
                broker = change["broker"]
            case "load":
                since_s[change["bundle"]] = change["at_s"]
            case "unload":
                asked_s[change["bundle"]] = change["at_s"]
            case "interval":
                bundle, end_s = change["bundle"], change["end_s"]
                since_s.pop(bundle, None)
                asked = asked_s.pop(bundle, end_s)
                yield bundle, _Serving(broker, change["start_s"], asked, end_s, change["why"])
    for bundle, start_s in since_s.items():
        yield bundle, _Serving(broker, start_s, float("inf"), float("inf"), "")


@dataclass(frozen=True, slots=True)
class Refusals:
    """Attempts of clients that a broker refused, and for how long.

    A client learns of a hand-over by a refusal, which is a message's ``first``; then it
    looks the owner up and tries again. An attempt that is refused after a lookup went to
    the broker that had just stopped (``stopped``: the lookup was made before, or within
    the moment in which its sidecar had not heard of it), or ``too_early`` to the next
    owner, which a lookup must not name before it serves. ``waits_s`` is from a message's
    first refused attempt to when it was taken.
    """

    first: int
    stopped: int
    too_early: int
    waits_s: Sequence[float]


def refusals_in(
    record: Path, hand_overs: Iterable[HandOver], bundle_of: Callable[[str], str]
) -> Refusals:
    coming = {(one.bundle, one.target, one.stopped_s, one.served_s) for one in hand_overs}
    refused_s: dict[str, float] = {}
    first, again, waits_s = 0, [], []
    for attempt in publishes_in(record.read_text(), str(record)):
        if attempt.status == HTTP_OK:
            if attempt.topic in refused_s:
                waits_s.append(attempt.answered_s - refused_s.pop(attempt.topic))
        elif attempt.topic in refused_s:
            again.append((bundle_of(attempt.topic), attempt.broker, attempt.answered_s))
        else:
            first += 1
            refused_s[attempt.topic] = attempt.sent_s
    too_early = [
        one for one in again if any(one[:2] == to[:2] and to[2] <= one[2] < to[3] for to in coming)
    ]
    return Refusals(first, len(again) - len(too_early), len(too_early), waits_s)
