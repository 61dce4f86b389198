"""What the traffic generator counts, and the lines by which it reports to its parent."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Literal, Self

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId

Kind = Literal["placed", "progress", "final"]
SLOW_S: Final = 0.5
"""A message that waited less is not reported by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficReport:
    """The traffic generator's counts since its start, at one moment.

    ``at_s`` is on the machine's monotonic clock, which parent and child share.
    ``waiting`` are messages due and not accepted yet. ``slowest_s`` holds, for each
    bundle with a message accepted late since the last report, the longest time from
    when the message was due to when a broker accepted it.

    A ``placed`` report comes once, when every topic has an owner; the skewed traffic
    begins with it. ``progress`` follows each second, ``final`` ends the stream.
    """

    kind: Kind
    at_s: float
    published: int = 0
    publish_errors: int = 0
    publish_retries: int = 0
    lookups: int = 0
    lookup_errors: int = 0
    waiting: int = 0
    slowest_s: Mapping[BundleId, float] = field(default_factory=dict)
    last_lookup_error: str = ""
    last_publish_error: str = ""

    def to_line(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the report that `to_line` wrote.

        Raises:
            MalformedContent: the line is not one.
        """
        try:
            fields: dict[str, Any] = json.loads(line)
            return cls(**fields)
        except (ValueError, TypeError) as error:
            expected = "a JSON object with the fields of TrafficReport"
            raise MalformedContent("traffic generator", repr(line), expected) from error


@dataclass(slots=True)
class TrafficCounts:
    """The running counts of one traffic generator."""

    published: int = 0
    publish_errors: int = 0
    publish_retries: int = 0
    lookups: int = 0
    lookup_errors: int = 0
    waiting: int = 0
    last_lookup_error: str = ""
    last_publish_error: str = ""
    _slowest_s: dict[BundleId, float] = field(default_factory=dict)

    def accepted(self, bundle: BundleId, waited_s: float) -> None:
        """Count a message that a broker accepted ``waited_s`` after it was due."""
        self.published += 1
        self.waiting -= 1
        self._note_wait(bundle, waited_s)

    def gave_up(self, bundle: BundleId, waited_s: float) -> None:
        """Count a message that was not accepted within the retry bound."""
        self.publish_errors += 1
        self.waiting -= 1
        self._note_wait(bundle, waited_s)

    def report(self, kind: Kind, at_s: float) -> TrafficReport:
        """Return the counts so far, and start over to look for slow messages."""
        slowest_s, self._slowest_s = self._slowest_s, {}
        return TrafficReport(
            kind=kind,
            at_s=at_s,
            published=self.published,
            publish_errors=self.publish_errors,
            publish_retries=self.publish_retries,
            lookups=self.lookups,
            lookup_errors=self.lookup_errors,
            waiting=self.waiting,
            slowest_s=slowest_s,
            last_lookup_error=self.last_lookup_error,
            last_publish_error=self.last_publish_error,
        )

    def _note_wait(self, bundle: BundleId, waited_s: float) -> None:
        if waited_s >= SLOW_S:
            self._slowest_s[bundle] = max(waited_s, self._slowest_s.get(bundle, 0.0))
