import asyncio
import contextlib
import itertools
import math

import pytest

from tests.testbed.faults.virtual_loop import VirtualTimeError
from tests.testbed.faults.virtual_time import VirtualClock, run


def test_a_deadlock_is_told_with_the_tasks_that_wait() -> None:
    async def program() -> None:
        await asyncio.create_task(asyncio.Event().wait(), name="for godot")

    with pytest.raises(VirtualTimeError, match=r"deadlock: .*for godot"):
        run(program())


def test_a_program_that_goes_on_for_ever_is_ended() -> None:
    async def program() -> None:
        while True:  # noqa: ASYNC110 - it waits for nothing
            await asyncio.sleep(1.0)

    with pytest.raises(VirtualTimeError, match="not done after 60 s"):
        run(program(), limit_s=60.0)


def test_what_a_forgotten_task_raises_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("nobody listens")

    async def program() -> None:
        forgotten = asyncio.ensure_future(fail())
        await asyncio.sleep(1.0)
        del forgotten

    with pytest.raises(AssertionError, match="never retrieved"):
        run(program())


def test_what_waits_for_a_time_too_near_for_the_clock_to_show_it_goes_on() -> None:
    async def program() -> None:
        clock = VirtualClock()
        await clock.sleep(24.0)
        deadline_s = math.nextafter(clock.monotonic_s(), math.inf)
        # What is left is shown by a clock at another rate, and less than a step of this one.
        while (left_s := deadline_s - clock.monotonic_s()) > 0.0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left_s / 2):
                    await asyncio.Event().wait()

    run(program(), cpu_limit_s=60.0)


def test_one_turn_that_never_ends_is_ended_and_told_with_where_it_was() -> None:
    async def spin() -> None:
        for _ in itertools.repeat(None):
            pass

    async def program() -> None:
        await asyncio.sleep(7.0)
        await asyncio.ensure_future(spin())

    with pytest.raises(VirtualTimeError, match=r"(?s)^7 s did not end in 0.1 s.*in spin\n"):
        run(program(), cpu_limit_s=0.1)


def test_what_is_ended_is_ended_again_if_it_holds_on() -> None:
    async def program() -> None:
        for _ in range(2):
            with contextlib.suppress(KeyboardInterrupt):
                for _ in itertools.repeat(None):
                    pass
        await asyncio.Event().wait()

    with pytest.raises(VirtualTimeError, match=r"(?s)^0 s did not end in 0.1 s.*in program\n"):
        run(program(), cpu_limit_s=0.1)
