import asyncio
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar, TypeVarTuple

Args = TypeVarTuple("Args")
T = TypeVar("T")

SWITCH_INTERVAL_S: Final = 0.00005
"""How long a thread keeps Python's lock while another waits; 0.005 otherwise. The event loop waits
so long each time it comes back from waiting for the network, and once more each time the thread
gave the lock back meanwhile, as numpy does in most of its functions."""

LONGEST_S: Final = 60.0
"""How long a computation is waited for: where one hangs, rounds fail and another sidecar leads."""


class ThreadedComputing:
    """The `Computing` port: one thread at a time, of its own.

    Not an executor, whose threads the interpreter waits for at its end: a process that is told to
    stop does so whatever is being computed.
    """

    def __init__(
        self, switch_interval_s: float = SWITCH_INTERVAL_S, longest_s: float = LONGEST_S
    ) -> None:
        self._switch_interval_s = switch_interval_s
        self._longest_s = longest_s
        self._under_way: asyncio.Future[Any] | None = None

    async def compute(self, function: Callable[[*Args], T], *args: *Args) -> T:
        """Raises `TimeoutError`: this computation or the one before has not ended in time."""
        try:
            async with asyncio.timeout(self._longest_s):
                # What a cancelled caller left is waited for, too.
                while self._under_way is not None:
                    await asyncio.wait([self._under_way])
                result, error = await asyncio.shield(self._begun(function, *args))
        except TimeoutError:
            raise TimeoutError(
                f"a computation has not ended within {self._longest_s:g} s"
            ) from None
        if error is not None:
            raise error
        return result  # type: ignore[return-value]  # there is one without an error

    def _begun(
        self, function: Callable[[*Args], T], *args: *Args
    ) -> "asyncio.Future[tuple[T, None] | tuple[None, BaseException]]":
        loop, usual_s = asyncio.get_running_loop(), sys.getswitchinterval()
        done: asyncio.Future[tuple[T, None] | tuple[None, BaseException]] = loop.create_future()
        self._under_way = done

        def finish(outcome: tuple[T, None] | tuple[None, BaseException]) -> None:
            self._under_way = None
            sys.setswitchinterval(usual_s)
            done.set_result(outcome)

        def work() -> None:
            outcome: tuple[T, None] | tuple[None, BaseException]
            try:
                outcome = function(*args), None
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                outcome = None, error
            with suppress(RuntimeError):  # The loop is closed: the process ends.
                loop.call_soon_threadsafe(finish, outcome)

        sys.setswitchinterval(self._switch_interval_s)
        threading.Thread(target=work, name="computing", daemon=True).start()
        return done
