import asyncio
from collections.abc import Callable

from loadmanager.ports.host import Clock

_LOOK_S = 1.0


class Subscriptions:
    """A source of changes, with callbacks and a wait.

    ``version`` increases with every change.
    """

    def __init__(self) -> None:
        self.version = 0
        self._callbacks: list[Callable[[], None]] = []
        # A dict keeps the order, so that waiting tasks resume in it.
        self._waiting: dict[asyncio.Future[None], None] = {}

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.remove(callback)

    def notify(self) -> None:
        self.version += 1
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            if not future.done():
                future.set_result(None)
        for callback in list(self._callbacks):
            try:
                callback()
            except Exception as error:  # noqa: BLE001 - the other callbacks are called, too
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"{callback!r} failed", "exception": error}
                )

    async def wait(self, timeout_s: float) -> bool:
        """Return True at the next change, False when ``timeout_s`` passed without one."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        try:
            # Not `wait_for`: until Python 3.12 it forgets a cancellation that comes
            # together with the change.
            async with asyncio.timeout(timeout_s):
                await future
        except TimeoutError:
            return False
        else:
            return True
        finally:
            self._waiting.pop(future, None)

    async def until(self, done: Callable[[], bool], clock: Clock, within_s: float) -> bool:
        """Return whether ``done`` came true within ``within_s``.

        It is called after each change, and once a second for what is not reported.
        """
        deadline_s = clock.monotonic_s() + within_s
        while not done():
            left_s = deadline_s - clock.monotonic_s()
            if left_s <= 0:
                return False
            await self.wait(min(left_s, _LOOK_S))
        return True
