import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

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


def own_time_s() -> float:
    """Return the time less that in which this thread was ready to run and had no processor.

    So it passes alike on a busy machine, where the kernel counts that time.
    """
    path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
    waited_ns = int(path.read_text().split()[1]) if path.exists() else 0
    return time.monotonic() - waited_ns / 1e9
