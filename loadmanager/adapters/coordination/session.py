import asyncio
from collections.abc import Callable

from loadmanager.ports.coordination import Connection, Disconnected, SessionLost, SessionState

Listener = Callable[[SessionState], None]


class SessionRecord:
    """The session's state as seen on the event loop. Only the adapter changes it."""

    def __init__(self, timeout_s: float) -> None:
        self.state = SessionState(Connection.SUSPENDED, 0, timeout_s)
        self._listeners: list[Listener] = []
        self._changed = asyncio.Event()

    def subscribe(self, listener: Listener) -> "ListenerWatch":
        self._listeners.append(listener)
        return ListenerWatch(self._listeners, listener)

    def publish(self, state: SessionState) -> None:
        if state == self.state:
            return
        self.state = state
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        for listener in tuple(self._listeners):
            try:
                listener(state)
            except Exception as error:  # noqa: BLE001 - as for any callback, the loop reports it; the other listeners must be called
                asyncio.get_running_loop().call_exception_handler(
                    {"message": f"session listener {listener!r} failed", "exception": error}
                )

    def require_connected(self) -> None:
        match self.state.connection:
            case Connection.SUSPENDED:
                raise Disconnected(f"{self._name()} is suspended; nothing was sent")
            case Connection.LOST:
                raise SessionLost(f"{self._name()} is lost; nothing was sent")
            case Connection.CONNECTED:
                return

    async def reconnected(self, session_id: int) -> None:
        """Return when the session is connected again.

        Raises `SessionLost`: the session expired, or another one replaced it; `Disconnected`: it
        did not reconnect within its timeout.
        """
        try:
            async with asyncio.timeout(self.state.timeout_s):
                while self.state.connection is Connection.SUSPENDED:
                    await self._changed.wait()
        except TimeoutError:
            raise Disconnected(
                f"{self._name()} was not connected again within {self.state.timeout_s:g} s"
            ) from None
        if self.state.connection is Connection.LOST or self.state.session_id != session_id:
            raise SessionLost(f"session {session_id:#x} ended before its reply came")

    def _name(self) -> str:
        return f"session {self.state.session_id:#x}" if self.state.session_id else "the session"


class ListenerWatch:
    def __init__(self, listeners: list[Listener], listener: Listener) -> None:
        self._listeners = listeners
        self._listener: Listener | None = listener

    def close(self) -> None:
        if self._listener is not None:
            self._listeners.remove(self._listener)
            self._listener = None
