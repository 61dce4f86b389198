import asyncio
import contextlib

from kazoo.protocol.states import KeeperState

from loadmanager.adapters.zookeeper.kazoo_client import ClientEvent, GatedClient
from loadmanager.adapters.zookeeper.options import ZooKeeperOptions


async def newest_transaction(options: ZooKeeperOptions, within_s: float) -> int | None:
    """Return the id of the newest transaction of the service; None if no server answers in time.

    A server refuses a session that has seen newer transactions than its own: it closes the
    connection without an answer. A new session has seen none and is not refused. The request is
    ``sync``, so the answer is up to date even if its server lags behind the leader.
    """
    loop = asyncio.get_running_loop()
    answered = asyncio.Event()

    def on_loop(_answer: object) -> None:
        # Called on kazoo's thread if the connection broke, perhaps after the loop was closed.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(answered.set)

    def hear(event: ClientEvent) -> None:
        if event.state == KeeperState.CONNECTED:
            event.client.admit(event.generation)
            event.client.sync_async("/").rawlink(on_loop)

    client = GatedClient(options, loop, hear)
    try:
        client.start_async()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(answered.wait(), within_s)
        # The header of each answer names the newest transaction that the server has applied.
        return client.last_zxid or None
    finally:
        await asyncio.shield(asyncio.to_thread(client.end))
