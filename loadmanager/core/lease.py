"""How much of a session timeout may be leased to a broker, and when the lease begins.

A session may expire earlier than its timeout after the last committed heartbeat. In an ensemble
a follower reports the active sessions to the ZooKeeper leader twice per tick, and the ZooKeeper
leader counts a session's timeout from that report; a transaction forwarded by the follower does
not extend it. So if a follower fails, the activity since its last report is lost, and the
session expires as if the heartbeats since then had not been sent. A lease must end before that,
even on a clock that runs slower than ours.
"""

from collections import deque
from typing import Final

CLOCK_DRIFT_FRACTION: Final = 0.02
"""How much slower than ours the broker's clock may run: the broker may be on another host.

Clocks that are being slewed differ by up to one thousandth; on the same host they are equal.
"""

_MARGIN_FRACTION: Final = 0.01
_LEAST_TICKS: Final = 2
"""By default no server grants a session of fewer ticks."""


def longest_lease_fraction(timeout_s: float, tick_s: float) -> float:
    """Return the largest part of a session of ``timeout_s`` that may be leased.

    ``tick_s`` is the ensemble's tick, or 0 if unknown; then the longest tick compatible with the
    session is assumed. If the result is zero or less, no lease is safe.
    """
    tick_fraction = tick_s / timeout_s if tick_s > 0 else 1 / _LEAST_TICKS
    lives_fraction = 1 - tick_fraction / 2 - _MARGIN_FRACTION
    return lives_fraction / (1 + CLOCK_DRIFT_FRACTION)


def report_interval_s(timeout_s: float, tick_s: float) -> float:
    """Return the time within which a follower reports a session's activity: half a tick.

    A margin is added for the transmission; ``tick_s`` as in `longest_lease_fraction`.
    """
    half_tick_s = tick_s / 2 if tick_s > 0 else timeout_s / _LEAST_TICKS / 2
    return half_tick_s + _MARGIN_FRACTION * timeout_s


def latest_end_s(known_since_s: float, timeout_s: float) -> float:
    """Return the latest end of a lease; ``known_since_s`` as in `Heartbeats`."""
    return known_since_s + (1 - _MARGIN_FRACTION) / (1 + CLOCK_DRIFT_FRACTION) * timeout_s


class Heartbeats:
    """The answered heartbeats of a process, and the latest that ZooKeeper's leader must know.

    A follower sends its reports and the requests it forwards in order over the same connection.
    So a heartbeat answered at least one report interval before a later heartbeat was sent had
    been reported by the time the later one was committed. ZooKeeper's leader knows a new session
    from its creation, which is after the start of the process, and after any heartbeat answered
    in an earlier session was sent.
    """

    def __init__(self, began_s: float) -> None:
        self._known_since_s = began_s
        self._unreported: deque[tuple[float, float]] = deque()

    def known_since_s(self, sent_s: float, answered_s: float, interval_s: float) -> float:
        """Add an answered heartbeat; return the earliest time from which the timeout can count."""
        while self._unreported and self._unreported[0][1] + interval_s <= sent_s:
            self._known_since_s, _ = self._unreported.popleft()
        self._unreported.append((sent_s, answered_s))
        return self._known_since_s
