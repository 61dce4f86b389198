"""The counts of the traffic generator, and the lines by which it reports them to its parent."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, Literal, Self

from loadmanager.core.errors import MalformedContent
from loadmanager.core.ids import BundleId

Kind = Literal["placed", "progress", "final"]
SLOW_S: Final = 0.5
"""Messages that waited less are not reported individually."""


@dataclass(slots=True, kw_only=True)
class Counts:
    """Counts since the start. ``waiting`` messages are due and not yet accepted."""

    published: int = 0
    publish_errors: int = 0
    publish_retries: int = 0
    lookups: int = 0
    lookup_errors: int = 0
    waiting: int = 0
    last_lookup_error: str = ""
    last_publish_error: str = ""


@dataclass(slots=True, kw_only=True)
class TrafficReport(Counts):
    """The counts of the traffic generator at one time.

    ``at_s`` is on the machine's monotonic clock, which parent and child share. ``slowest_s`` has
    each bundle with a message that was accepted late since the last report, and the longest time
    from when such a message was due to when a broker accepted it.

    A ``placed`` report comes once, when every topic has an owner; the skewed traffic begins with
    it. ``progress`` follows each second, ``final`` is the last report.
    """

    kind: Kind
    at_s: float
    slowest_s: Mapping[BundleId, float] = field(default_factory=dict)

    def to_line(self) -> str:
        """Return the report as one line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_line(cls, line: str) -> Self:
        """Return the report that `to_line` encoded.

        Raises:
            MalformedContent: the line is not a report.
        """
        try:
            values: dict[str, Any] = json.loads(line)
            return cls(**values)
        except (ValueError, TypeError) as error:
            expected = "a JSON object with the fields of TrafficReport"
            raise MalformedContent("traffic generator", repr(line), expected) from error


@dataclass(slots=True, kw_only=True)
class TrafficCounts(Counts):
    """The running counts of one traffic generator."""

    _slowest_s: dict[BundleId, float] = field(default_factory=dict)

    def accepted(self, bundle: BundleId, waited_s: float) -> None:
        """Count a message that a broker accepted ``waited_s`` after it was due."""
        self.published += 1
        self._ended(bundle, waited_s)

    def gave_up(self, bundle: BundleId, waited_s: float) -> None:
        """Count a message that was not accepted within the retry bound."""
        self.publish_errors += 1
        self._ended(bundle, waited_s)

    def report(self, kind: Kind, at_s: float) -> TrafficReport:
        """Return the counts so far, and forget the slow messages."""
        slowest_s, self._slowest_s = self._slowest_s, {}
        counts = {one.name: getattr(self, one.name) for one in fields(Counts)}
        return TrafficReport(kind=kind, at_s=at_s, slowest_s=slowest_s, **counts)

    def _ended(self, bundle: BundleId, waited_s: float) -> None:
        self.waiting -= 1
        if waited_s >= SLOW_S:
            self._slowest_s[bundle] = max(waited_s, self._slowest_s.get(bundle, 0.0))
