"""The mark of a broker that is to be emptied."""

from dataclasses import dataclass

from loadmanager.core.bounds import TIME_MS
from loadmanager.core.fields import parse_fields, to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMark:
    """Since when a broker is to be emptied, by whom and why; for people to read.

    ``since_ms`` is the wall clock of the sidecar that wrote the mark.
    """

    since_ms: int = 0
    by: str = ""
    reason: str = ""


def encode_drain_mark(mark: DrainMark) -> bytes:
    """Return the content of ``/loadbalance/draining/{broker}``."""
    return to_json({"sinceMs": mark.since_ms, "by": mark.by, "reason": mark.reason})


def decode_drain_mark(where: str, data: bytes) -> DrainMark:
    """Return what a mark says."""
    fields = parse_fields(where, data)
    return DrainMark(
        since_ms=fields.count("sinceMs", bound=TIME_MS),
        by=fields.text("by", default=""),
        reason=fields.text("reason", default=""),
    )
