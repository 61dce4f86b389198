from collections.abc import Callable, Collection
from typing import Protocol, TypeVar, TypeVarTuple

from loadmanager.core.load import HostUsage


class HostProbe(Protocol):
    """Measures the usage of the broker's host, container or process tree."""

    def sample(
        self,
        *,
        broker_process_id: int | None = None,
        broker_port: int = 0,
        neighbour_ports: Collection[int] = (),
    ) -> HostUsage:
        """Return the usage since the last call; rates are None at the first.

        ``neighbour_ports`` are those of other brokers that are registered with the same
        host name: they may run on this host, too.

        A counter that cannot be read leaves its resource None, is logged once, and
        never raises.
        """


class Clock(Protocol):
    def monotonic_s(self) -> float: ...

    def wall_ms(self) -> int:
        """Milliseconds since 1970, for people and logs, never for deadlines."""

    async def sleep(self, delay_s: float) -> None: ...


Args = TypeVarTuple("Args")
T = TypeVar("T")


class Computing(Protocol):
    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Return what ``function`` returns, or raise what it raises.

        It may run in another thread, one at a time. Its arguments must be immutable, and it must
        not change anything. If the caller is cancelled, its result is dropped. Raises
        `TimeoutError`: it takes too long; it may continue, but is not waited for.
        """


class ComputingInline:
    """Computes in the caller's thread, as required by simulations in virtual time."""

    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        return function(*args)
