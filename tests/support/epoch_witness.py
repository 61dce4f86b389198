"""Whether orders were written for a term that was over, as ZooKeeper's own numbers tell."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from time import monotonic

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from loadmanager.core import znodes
from loadmanager.core.orders import decode_orders

POLL_S = 0.01
ELECTED_BOUND_S = 40.0


class EpochWitness:
    def __init__(self, client: KazooClient) -> None:
        self._client = client

    async def depose(self) -> None:
        """Delete the leader's node, as an operator might; return when another is elected."""
        before = await asyncio.to_thread(self._client.exists, znodes.EPOCH)
        await asyncio.to_thread(self._client.delete, znodes.LEADER)
        deadline_s = monotonic() + ELECTED_BOUND_S
        while True:
            now = await asyncio.to_thread(self._client.exists, znodes.EPOCH)
            if now.version > before.version:
                return
            assert monotonic() < deadline_s, "nobody else was elected"
            await asyncio.sleep(POLL_S)

    async def written_late(self, within_s: float) -> Sequence[str]:
        """Return the orders of a former epoch that are written after the present one began.

        Looks for ``within_s``, or until it found some. ZooKeeper numbers its transactions:
        those after the one that made the present epoch must be of this epoch.
        """
        deadline_s = monotonic() + within_s
        while monotonic() < deadline_s:
            if late := await asyncio.to_thread(self._late):
                return late
            await asyncio.sleep(POLL_S)
        return []

    def _late(self) -> list[str]:
        late = []
        for name in self._client.get_children(znodes.ORDERS):
            path = f"{znodes.ORDERS}/{name}"
            # The epoch first: if it moves on meanwhile, nothing looks later than it was.
            epoch = self._client.exists(znodes.EPOCH)
            try:
                content, stat = self._client.get(path)
            except NoNodeError:
                continue
            written_for = decode_orders(path, content).epoch
            if stat.mzxid > epoch.mzxid and written_for < epoch.version:
                late.append(f"{path}: orders of epoch {written_for} in epoch {epoch.version}")
        return late


@asynccontextmanager
async def epoch_witness(hosts: str) -> AsyncIterator[EpochWitness]:
    """Yield a witness with a session of its own; a chroot may follow the hosts."""
    client = KazooClient(hosts=hosts)
    await asyncio.to_thread(client.start)
    try:
        yield EpochWitness(client)
    finally:
        await asyncio.to_thread(client.stop)
        await asyncio.to_thread(client.close)
