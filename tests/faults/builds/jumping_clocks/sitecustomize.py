"""A process whose wall clock jumps by up to an hour and whose monotonic clock is its own."""

import os
import sys
import time
from random import Random

JUMP_EVERY_S = 0.4
FURTHEST_S = 3600
DAY_S = 86_400
_wall_ns = time.time_ns
_monotonic_ns = time.monotonic_ns
_ahead_ns = DAY_S * (1 + os.getpid() % 7) * 10**9


def _time_ns() -> int:
    step = _monotonic_ns() // round(JUMP_EVERY_S * 1e9)
    return _wall_ns() + Random(step).randint(-FURTHEST_S, FURTHEST_S) * 10**9  # noqa: S311 - no secret


def _time() -> float:
    return _time_ns() / 1e9


def _own_monotonic_ns() -> int:
    return _monotonic_ns() + _ahead_ns


def _own_monotonic() -> float:
    return _own_monotonic_ns() / 1e9


time.time_ns = _time_ns
time.time = _time  # noqa: TID251 - it is made to jump here
time.monotonic_ns = _own_monotonic_ns
time.monotonic = _own_monotonic
sys.stderr.write("build: jumping_clocks\n")
