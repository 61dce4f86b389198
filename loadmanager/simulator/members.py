"""The states of brokers: alive, registered, draining."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadmanager.core.columns import Mask
from loadmanager.core.scores import FloatArray

_NEVER: Final = -1


class Members:
    """The states of B brokers.

    ``alive`` brokers serve. ``registered`` ones have a session; after a crash the session and its
    locks remain until the timeout. ``draining`` ones are being emptied. ``noise_cores`` is the CPU
    taken by noise events. ``started_at_ms`` is different after each start of a broker.
    """

    def __init__(self, joined: Mask) -> None:
        self.alive: Mask = joined.copy()
        self.registered: Mask = joined.copy()
        self.draining: Mask = np.zeros(len(joined), dtype=np.bool_)
        self.noise_cores: FloatArray = np.zeros(len(joined))
        self.session_ends_s: FloatArray = np.full(len(joined), np.inf)
        self.started_at_ms: NDArray[np.int64] = np.where(joined, 0, _NEVER).astype(np.int64)

    def begin(self, row: int, at_s: float) -> None:
        self.alive[row] = self.registered[row] = True
        self.draining[row] = False
        self.started_at_ms[row] = max(int(at_s * 1000), int(self.started_at_ms[row]) + 1)

    def die(self, row: int, session_ends_s: float) -> None:
        """Crash a broker, whose session remains until ``session_ends_s``."""
        self.alive[row] = False
        self.session_ends_s[row] = session_ends_s

    def deregister(self, row: int) -> None:
        self.alive[row] = self.registered[row] = self.draining[row] = False
        self.session_ends_s[row] = np.inf
