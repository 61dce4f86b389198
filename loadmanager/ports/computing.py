"""Where long computations are done, so that lookups and leases need not wait for them."""

from collections.abc import Callable
from typing import Protocol, TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
T = TypeVar("T")


class Computing(Protocol):
    """Computes from values to values."""

    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Return what ``function`` returns, or raise what it raises.

        It may run in another thread, one at a time. What it is given must not change any more, and
        it changes nothing. Where the caller is cancelled its result is dropped.

        Raises:
            TimeoutError: it takes too long; it may go on, and is not waited for.
        """


class ComputingInline:
    """Computes where it is asked, which is what simulations in virtual time need."""

    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Return what ``function`` returns."""
        return function(*args)
