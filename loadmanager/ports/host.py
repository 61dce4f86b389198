from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple


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
