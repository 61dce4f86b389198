"""How much of a session timeout may be leased to a broker, and from when it counts.

A session does not live its whole timeout after the last heartbeat that was committed. On
an ensemble a follower reports to its leader twice a tick which sessions were active, and
the leader counts a session's timeout from that report. A transaction that the follower
forwards does not count for it. So the activity since a follower's last report is lost when
it fails, and the session ends as if the heartbeats since then had not been sent. A lease
has to be over before, on a clock that runs slower than ours as well.
"""

from collections import deque
from typing import Final

CLOCK_DRIFT_FRACTION: Final = 0.02
"""How much slower than ours the broker's clock may run: a sidecar may be on another host.

Clocks that are being set by slewing differ by a thousandth; on one host they are the same.
"""

_MARGIN_FRACTION: Final = 0.01
_LEAST_TICKS: Final = 2
"""No server grants a session of fewer ticks, unless it was configured to."""


def longest_lease_fraction(timeout_s: float, tick_s: float) -> float:
    """Return the largest part of a session of ``timeout_s`` that may be leased.

    ``tick_s`` is the ensemble's tick; 0 if it is unknown, which stands for the longest
    that goes with the session. The result may be zero or less: no lease is safe.
    """
    tick_fraction = tick_s / timeout_s if tick_s > 0 else 1 / _LEAST_TICKS
    lives_fraction = 1 - tick_fraction / 2 - _MARGIN_FRACTION
    return lives_fraction / (1 + CLOCK_DRIFT_FRACTION)


def report_interval_s(timeout_s: float, tick_s: float) -> float:
    """Return the time within which a follower reports a session's activity: half a tick.

    A little more, for the way there; ``tick_s`` as in `longest_lease_fraction`.
    """
    half_tick_s = tick_s / 2 if tick_s > 0 else timeout_s / _LEAST_TICKS / 2
    return half_tick_s + _MARGIN_FRACTION * timeout_s


def latest_end_s(known_since_s: float, timeout_s: float) -> float:
    """Return when a lease has to end at the latest; ``known_since_s`` as in `Heartbeats`."""
    return known_since_s + (1 - _MARGIN_FRACTION) / (1 + CLOCK_DRIFT_FRACTION) * timeout_s


class Heartbeats:
    """The answered heartbeats of a process, and the newest that the leader certainly has.

    A follower's reports go the same way as the requests that it forwards, in order. So what was
    answered a report interval before another heartbeat was sent had been reported when that
    other one was committed. A new session is known to the leader since it began, and that was after
    the process had begun, and after what was answered in an earlier session had been sent.
    """

    def __init__(self, began_s: float) -> None:
        self._known_since_s = began_s
        self._unreported: deque[tuple[float, float]] = deque()

    def known_since_s(self, sent_s: float, answered_s: float, interval_s: float) -> float:
        """Add an answered heartbeat, and return since when at least the leader counts by now."""
        while self._unreported and self._unreported[0][1] + interval_s <= sent_s:
            self._known_since_s, _ = self._unreported.popleft()
        self._unreported.append((sent_s, answered_s))
        return self._known_since_s
