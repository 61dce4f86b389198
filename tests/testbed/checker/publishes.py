"""The record of a client: one JSON object per line for each message that it sent.

``python -m tests.testbed.checker.publishes SETTINGS.json RECORD`` is the demo's traffic generator
that writes one.
"""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from yarl import URL

from loadmanager.core.ids import BundleId
from loadmanager.demo.traffic import HTTP_OK, Producer, TrafficSettings, generate


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """The answer of a broker that accepted a message.

    ``incarnation`` is its process, ``bundle`` and ``fencing_token`` the grant under which it
    accepted, ``clock_s`` its own clock at that time.
    """

    incarnation: str
    bundle: BundleId
    fencing_token: int
    clock_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One attempt to publish a message of ``topic``, given in full, to ``broker``.

    ``sent_s`` and ``answered_s`` are on the client's monotonic clock. ``status`` is that
    of the answer, 0 without one: then it is unknown whether the message was accepted.
    """

    topic: str
    broker: str
    sent_s: float
    answered_s: float
    status: int
    acknowledgement: Acknowledgement | None = None

    def to_line(self) -> str:
        return json.dumps(asdict(self))


def publishes_in(text: str) -> Iterator[Publish]:
    """Yield the attempts of a client's record.

    An incomplete last line, as a killed client leaves it, is ignored.
    """
    for line in text.split("\n")[:-1]:
        fields: dict[str, Any] = json.loads(line)
        answer = fields["acknowledgement"]
        taken = None if answer is None else Acknowledgement(**answer)
        yield Publish(**fields | {"acknowledgement": taken})


class RecordingProducer(Producer):
    def __init__(self, *arguments: Any, record: Callable[[Publish], object]) -> None:
        super().__init__(*arguments)
        self._record = record

    async def send(self, url: str) -> tuple[int, str]:
        sent_s = monotonic()
        status, text = await super().send(url)
        attempt = Publish(
            topic=str(self.topic),
            broker=URL(url).authority,
            sent_s=sent_s,
            answered_s=monotonic(),
            status=status,
            acknowledgement=_acknowledgement(text) if status == HTTP_OK else None,
        )
        self._record(attempt)
        return status, text


def _acknowledgement(text: str) -> Acknowledgement:
    answer = json.loads(text)
    return Acknowledgement(
        incarnation=answer["incarnation"],
        bundle=BundleId(answer["bundle"]),
        fencing_token=int(answer["fencingToken"]),
        clock_s=float(answer["clockSeconds"]),
    )


if __name__ == "__main__":
    with Path(sys.argv[2]).open("a", 1, encoding="utf-8") as file:
        producer = partial(RecordingProducer, record=lambda one: file.write(f"{one.to_line()}\n"))
        asyncio.run(generate(TrafficSettings.load(Path(sys.argv[1])), producer))
