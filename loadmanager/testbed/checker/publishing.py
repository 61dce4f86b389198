"""What a client wrote down of each message it sent: one JSON object a line."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Self

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId


@dataclass(frozen=True, slots=True, kw_only=True)
class Acknowledgement:
    """What the broker said when it took a message.

    ``incarnation`` is the process that took it, ``bundle`` and ``fencing_token`` the
    grant under which it did, ``clock_s`` its own clock at that instant.
    """

    incarnation: str
    bundle: BundleId
    fencing_token: int
    clock_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """One attempt to publish a message of ``topic``, given in full, to ``broker``.

    ``sent_s`` and ``answered_s`` are on the client's monotonic clock. ``status`` is that
    of the answer, 0 if there was none: then the message may have been taken or not.
    """

    topic: str
    broker: str
    sent_s: float
    answered_s: float
    status: int
    acknowledgement: Acknowledgement | None = None

    def to_line(self) -> str:
        """Return the attempt as one line of JSON, without the line's end."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str, where: str) -> Self:
        """Return the attempt that `to_line` wrote.

        Raises:
            MalformedContent: the line is not one.
        """
        try:
            fields: dict[str, Any] = json.loads(line)
            said = fields["acknowledgement"]
            taken = None if said is None else Acknowledgement(**said)
            return cls(**fields | {"acknowledgement": taken})
        except (ValueError, TypeError, KeyError) as error:
            expected = "a JSON object with the fields of Publish"
            raise MalformedContent(where, repr(line[:200]), expected) from error


def publishes_in(text: str, where: str) -> Iterator[Publish]:
    """Yield the attempts of a client's record, whose name is ``where``.

    A last line without its end is what a killed client leaves, and is ignored.

    Raises:
        MalformedContent: a whole line is not an attempt.
    """
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        yield Publish.from_line(line, f"{where}:{number}")
