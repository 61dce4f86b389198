"""The host's own clock."""

import asyncio
import time


class SystemClock:
    """The `Clock` port on this host and the running event loop."""

    def monotonic_s(self) -> float:
        """Return seconds on a clock that never jumps."""
        return time.monotonic()

    def wall_ms(self) -> int:
        """Return milliseconds since 1970."""
        return time.time_ns() // 1_000_000

    async def sleep(self, delay_s: float) -> None:
        """Return after ``delay_s``."""
        await asyncio.sleep(delay_s)
