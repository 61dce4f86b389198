from typing import Final

SILENCE_FRACTION: Final = 1 / 4
"""A connection without a due answer for this fraction of the session timeout is dead.

kazoo alone would notice at two thirds, when the broker must have stopped already, and
not at all while requests are made faster than it sends pings."""

PROBE_FRACTION: Final = 0.16
"""Interval of probes on an idle connection, as a fraction of the session timeout.

An agent's heartbeats come sooner ([ownership] heartbeat_fraction) and make probes unnecessary."""

LOOK_FRACTION: Final = 1 / 24
"""Interval of the checks of the two above. A dead link is noticed after at most
0.16 + 1/24 + 1/4 + 1/24 < 1/2 of the session timeout."""


class Keepalive:
    """Counts requests and answers of one connection. Times are the loop's, in seconds."""

    def __init__(self, timeout_s: float, now_s: float) -> None:
        self.look_interval_s = timeout_s * LOOK_FRACTION
        self._timeout_s = timeout_s
        self._pending = 0
        self._quiet_since_s = now_s

    def asked(self, now_s: float) -> None:
        if self._pending == 0:
            self._quiet_since_s = now_s
        self._pending += 1

    def answered(self, now_s: float) -> None:
        self._pending -= 1
        self._quiet_since_s = now_s

    def is_dead(self, now_s: float) -> bool:
        return self._pending > 0 and self._silence_s(now_s) > self._timeout_s * SILENCE_FRACTION

    def wants_probe(self, now_s: float) -> bool:
        """Return whether no request is under way, and the connection has been idle for too long."""
        return self._pending == 0 and self._silence_s(now_s) >= self._timeout_s * PROBE_FRACTION

    def _silence_s(self, now_s: float) -> float:
        return now_s - self._quiet_since_s
