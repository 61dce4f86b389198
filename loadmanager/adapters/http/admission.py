from collections import Counter, deque
from collections.abc import Callable
from typing import Final, Protocol

from loadmanager.adapters.http.replies import Refused, unavailable
from loadmanager.config.deployment import HttpSettings

# Requests handed over before other tasks run, such as the lease and the session: about ten
# milliseconds of work.
_MAX_UNBEGUN: Final = 64
# Refused clients in turn are told to wait up to 4 s longer, so that they do not retry together.
_RETRY_SPREAD_S: Final = 5


class Connection(Protocol):
    def take_turn(self) -> None: ...

    def check_timeouts(self, now_s: float) -> None: ...


class Admission:
    def __init__(self, limits: HttpSettings, refused: Callable[[str], None]) -> None:
        self.limits = limits
        self.refused = refused
        self._open: dict[Connection, str] = {}
        self._by_address: Counter[str] = Counter()
        self._unbegun = 0
        self._waiting: deque[Connection] = deque()
        self._turned_away = 0

    def connected(self, connection: Connection, address: str) -> Refused | None:
        """Count a connection; return a refusal if it exceeds a limit, else None."""
        self._open[connection] = address
        self._by_address[address] += 1
        limits = self.limits
        if len(self._open) > limits.max_connections:
            return self._turn_away("connections", f"{limits.max_connections} connections are open")
        most = limits.max_connections_per_address
        if most and self._by_address[address] > most:
            return self._turn_away("address", f"{most} connections of {address} are open")
        return None

    def disconnected(self, connection: Connection) -> None:
        address = self._open.pop(connection)
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]

    def check_timeouts(self, now_s: float) -> None:
        for connection in list(self._open):
            connection.check_timeouts(now_s)

    @property
    def has_room(self) -> bool:
        return self._unbegun < _MAX_UNBEGUN

    def enqueue(self, connection: Connection) -> Refused | None:
        """Queue a connection's request; return a refusal if the queue is full, else None."""
        if len(self._waiting) >= self.limits.max_queued_requests:
            return self._turn_away("requests", f"{len(self._waiting)} requests wait already")
        self._waiting.append(connection)
        return None

    def handed_over(self) -> None:
        """Count a request that was handed to the parser and has no handler yet."""
        self._unbegun += 1

    def begun(self) -> None:
        """Stop counting a request that has a handler now, and hand over waiting ones."""
        self._unbegun -= 1
        while self._waiting and self.has_room:
            self._waiting.popleft().take_turn()

    def _turn_away(self, why: str, text: str) -> Refused:
        self.refused(why)
        self._turned_away += 1
        return unavailable(f"{text}, the most allowed", 1.0 + self._turned_away % _RETRY_SPREAD_S)
