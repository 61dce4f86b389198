import asyncio
import time


class SystemClock:
    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    async def sleep(self, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
