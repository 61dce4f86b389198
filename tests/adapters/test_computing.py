"""Long computations beside the event loop."""

import asyncio
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from loadmanager.adapters.computing import ThreadedComputing
from loadmanager.ports.host import ComputingInline


async def test_the_loop_goes_on_meanwhile_and_gets_the_result() -> None:
    going_on = threading.Event()

    def wait(value: int) -> tuple[int, bool]:
        return value, going_on.wait(5)

    computing = asyncio.ensure_future(ThreadedComputing().compute(wait, 7))
    await asyncio.sleep(0)
    going_on.set()
    assert await computing == (7, True)


@pytest.mark.parametrize("error", [ValueError("no such figure"), KeyboardInterrupt()])
async def test_it_raises_what_the_function_raises(error: BaseException) -> None:
    def fail() -> None:
        raise error

    computing = ThreadedComputing()
    with pytest.raises(type(error)):
        await computing.compute(fail)
    assert await computing.compute(lambda: 1) == 1


async def test_stop_iteration_does_not_hang() -> None:
    with pytest.raises(RuntimeError):
        await ThreadedComputing().compute(next, iter(()))


async def test_the_loop_gets_pythons_lock_sooner_while_something_is_computed() -> None:
    usual_s = sys.getswitchinterval()
    found_s = await ThreadedComputing(0.001).compute(sys.getswitchinterval)
    assert found_s == pytest.approx(0.001)
    assert sys.getswitchinterval() == usual_s


async def test_one_at_a_time_even_if_the_first_is_given_up() -> None:
    computing = ThreadedComputing()
    let_go, at_work, most = threading.Event(), [0], [0]

    def work(*, waits: bool) -> None:
        at_work[0] += 1
        most[0] = max(most[0], at_work[0])
        if waits:
            let_go.wait(5)
        at_work[0] -= 1

    first = asyncio.ensure_future(computing.compute(partial(work, waits=True)))
    await asyncio.sleep(0.01)
    others = [
        asyncio.ensure_future(computing.compute(partial(work, waits=False))) for _ in range(3)
    ]
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await asyncio.sleep(0.01)
    assert not any(one.done() for one in others)
    let_go.set()
    await asyncio.gather(*others)
    assert (most, at_work) == ([1], [0])


async def test_one_that_hangs_is_not_waited_for_and_neither_are_those_behind_it() -> None:
    computing, let_go = ThreadedComputing(longest_s=0.05), threading.Event()
    with pytest.raises(TimeoutError, match=r"not ended within 0\.05 s"):
        await computing.compute(let_go.wait, 30)
    with pytest.raises(TimeoutError):
        await computing.compute(lambda: 1)
    let_go.set()

    async def fails() -> bool:
        try:
            return await computing.compute(lambda: False)
        except TimeoutError:
            return True

    async with asyncio.timeout(5):
        while await fails():
            pass


STOPPED = """
import asyncio, time
from loadmanager.adapters.computing import ThreadedComputing
async def main():
    asyncio.ensure_future(ThreadedComputing().compute(time.sleep, 60))
    await asyncio.sleep(0.05)
asyncio.run(main())
"""


def test_a_process_ends_whatever_is_being_computed() -> None:
    began_s = time.monotonic()
    done = subprocess.run([sys.executable, "-c", STOPPED], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert time.monotonic() - began_s < 30


async def test_inline_it_is_done_at_once() -> None:
    with pytest.raises(StopIteration):
        ComputingInline().compute(lambda: 3).send(None)
