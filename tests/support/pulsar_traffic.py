"""Real Pulsar clients that send to many topics at steady rates, and what became of each send."""

import heapq
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

PAYLOAD: Final = b"x" * 100
_LONGEST_SLEEP_S: Final = 0.005
_LATEST_S: Final = 1.0
LEAST_GAP_S: Final = 0.1
ANSWERED_S: Final = 60.0
"""How long the last messages are waited for at the end, and then their producers' end."""


def zipf_rates(topics: Sequence[str], msgs_per_s: float, exponent: float) -> dict[str, float]:
    weights = [(place + 1) ** -exponent for place in range(len(topics))]
    return {
        topic: msgs_per_s * weight / sum(weights)
        for topic, weight in zip(topics, weights, strict=True)
    }


@dataclass(slots=True)
class Sends:
    """What became of the messages so far.

    ``gaps`` are a topic and the times of two acknowledgements in a row that are ``LEAST_GAP_S`` or
    more apart. ``stored_s`` is when the last message of each topic was acknowledged.
    ``unanswered`` is how many messages of each topic were neither acknowledged nor failed so far.
    """

    acknowledged: int = 0
    failed: list[str] = field(default_factory=list)
    slowest_s: float = 0.0
    gaps: list[tuple[str, float, float]] = field(default_factory=list)
    stored_s: dict[str, float] = field(default_factory=dict)
    unanswered: dict[str, int] = field(default_factory=dict)


@contextmanager
def sending(
    pulsar: Any,
    service_url: str,
    rates: Mapping[str, float],
    send_timeout_s: float = 30.0,
    *,
    ends: bool = True,
) -> Iterator[Sends]:
    """Send messages of 100 B to each topic at its rate until the end of the block.

    A send fails that has no answer within ``send_timeout_s``; with 0 none does. The end of the
    block waits for answers no longer than ``ANSWERED_S``. Without ``ends``, for topics that are
    deleted, it does not wait: what a client does that cannot go on is Pulsar's.

    Raises:
        AssertionError: messages had no answer by then.
    """
    client = pulsar.Client(
        service_url,
        operation_timeout_seconds=60,
        # Each retry is an error there; a failed test is hard to read beneath hundreds of them.
        logger=pulsar.FileLogger(pulsar.LoggerLevel.Error, os.devnull),
    )
    producers = [
        client.create_producer(
            topic,
            batching_enabled=False,
            max_pending_messages=50_000,
            send_timeout_millis=round(1000 * send_timeout_s),
        )
        for topic in rates
    ]
    sends, over = Sends(), threading.Event()
    thread = threading.Thread(
        target=_send, args=(pulsar, dict(zip(rates, producers, strict=True)), rates, sends, over)
    )
    thread.start()
    try:
        yield sends
    finally:
        over.set()
        thread.join()
        if ends:
            _end(client, sends)
        else:
            threading.Thread(target=client.shutdown, daemon=True).start()


def _end(client: Any, sends: Sends) -> None:
    """Wait for the last answers and close the client; both may take forever where nobody serves."""
    deadline_s = time.monotonic() + ANSWERED_S
    while any(sends.unanswered.values()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    silent = {topic: count for topic, count in sends.unanswered.items() if count}
    end = threading.Thread(target=client.shutdown if silent else client.close, daemon=True)
    end.start()
    end.join(ANSWERED_S)
    assert not silent, f"without an answer for {ANSWERED_S:g} s: {silent}"
    assert not end.is_alive(), f"the client did not close within {ANSWERED_S:g} s"


def _send(
    pulsar: Any,
    producers: Mapping[str, Any],
    rates: Mapping[str, float],
    sends: Sends,
    over: threading.Event,
) -> None:
    start_s = time.monotonic()
    sends.stored_s = stored_s = dict.fromkeys(rates, start_s)
    sends.unanswered = unanswered = dict.fromkeys(rates, 0)
    counting = threading.Lock()

    def answered(result: Any, topic: str, sent_s: float) -> None:
        now_s = time.monotonic()
        with counting:
            unanswered[topic] -= 1
        if result != pulsar.Result.Ok:
            sends.failed.append(str(result))
            return
        sends.acknowledged += 1
        sends.slowest_s = max(sends.slowest_s, now_s - sent_s)
        if now_s - stored_s[topic] >= LEAST_GAP_S:
            sends.gaps.append((topic, stored_s[topic], now_s))
        stored_s[topic] = now_s

    due = [
        (start_s + place / len(rates) / rates[topic], topic) for place, topic in enumerate(rates)
    ]
    heapq.heapify(due)
    while not over.is_set():
        now_s = time.monotonic()
        while due[0][0] <= now_s:
            at_s, topic = due[0]
            producers[topic].send_async(
                PAYLOAD,
                lambda result, _message, topic=topic, sent_s=now_s: answered(result, topic, sent_s),
            )
            with counting:
                unanswered[topic] += 1
            # What a busy machine did not send for a second is not sent all at once.
            heapq.heapreplace(due, (max(at_s + 1 / rates[topic], now_s - _LATEST_S), topic))
        time.sleep(max(0.0, min(due[0][0] - time.monotonic(), _LONGEST_SLEEP_S)))
