"""Waiting for a condition, with a bound."""

import asyncio
from collections.abc import Callable

_LOOK_EVERY_S = 0.005


async def eventually(condition: Callable[[], object], *, within_s: float = 60.0) -> None:
    """Return once ``condition()`` is true; fail with its last value otherwise.

    The bound is for what never comes: a busy machine may take its time.
    """
    deadline_s = asyncio.get_running_loop().time() + within_s
    while not (value := condition()):
        if asyncio.get_running_loop().time() > deadline_s:
            raise AssertionError(f"still {value!r} after {within_s} s")
        await asyncio.sleep(_LOOK_EVERY_S)
