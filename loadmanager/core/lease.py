"""How much of a session timeout may be leased to a broker.

A session does not live its whole timeout after the last heartbeat that was committed. On
an ensemble a follower tells its leader of the sessions that it heard from twice a tick,
and the leader counts a session's timeout from then: a session may end half a tick early.
A lease has to be over before, on a clock that runs slower than ours as well.
"""

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
