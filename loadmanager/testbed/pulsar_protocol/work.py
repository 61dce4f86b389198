"""The CPU that a message costs, one at a time: an unload waits for one, not for a queue."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager


class Work:
    """What all connections of a broker share: one core's worth of work.

    Args:
        cpu_s_per_message: burnt on each message.
        spend_cpu: burns so many seconds.
    """

    def __init__(
        self, cpu_s_per_message: float, spend_cpu: Callable[[float], Awaitable[None]]
    ) -> None:
        self._cpu_s_per_message = cpu_s_per_message
        self._spend_cpu = spend_cpu
        self._lock = asyncio.Lock()

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait for one's turn and hold it."""
        async with self._lock:
            yield

    async def spend(self, messages: int) -> None:
        """Burn what these messages cost."""
        if self._cpu_s_per_message:
            await self._spend_cpu(self._cpu_s_per_message * messages)
