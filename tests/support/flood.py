import asyncio
import json
import sys
import time
from collections import Counter

REQUESTS = 20


async def flood(port: int, connections: int, seconds: float) -> Counter[str]:
    """Return how often each status came; a client that is turned away comes back at once."""
    statuses: Counter[str] = Counter()
    until_s = time.monotonic() + seconds

    async def one(number: int) -> None:
        while time.monotonic() < until_s:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                statuses["refused"] += 1
                continue
            try:
                writer.write(
                    b"".join(
                        b"GET /lookup/v2/topic/persistent/public/none/t-%d HTTP/1.1\r\n"
                        b"Host: 127.0.0.1\r\nX-Request-Id: %d-%d\r\n\r\n" % (n, number, n)
                        for n in range(REQUESTS)
                    )
                )
                async with asyncio.timeout_at(asyncio.get_running_loop().time() + seconds):
                    for _ in range(REQUESTS):
                        head = await reader.readuntil(b"\r\n\r\n")
                        statuses[head.split(b" ", 2)[1].decode()] += 1
                        length = head.lower().partition(b"content-length: ")[2].split(b"\r")[0]
                        await reader.readexactly(int(length or b"0"))
            except (OSError, asyncio.IncompleteReadError, TimeoutError):
                statuses["cut off"] += 1
            finally:
                writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))
    return statuses


if __name__ == "__main__":
    given = asyncio.run(flood(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
    print(json.dumps(given))  # noqa: T201 - what the parent reads
