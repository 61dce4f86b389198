import asyncio
import contextlib
import itertools
import math
import signal
import time

import pytest

from tests.testbed.faults.virtual_loop import START_S, VirtualTimeError
from tests.testbed.faults.virtual_time import VirtualClock, run


def test_an_hour_passes_at_once() -> None:
    async def program() -> float:
        await VirtualClock().sleep(3600.0)
        return VirtualClock().monotonic_s()

    started_s = time.monotonic()
    assert run(program(), limit_s=4000.0) == pytest.approx(START_S + 3600.0)
    assert time.monotonic() - started_s < 600.0


def test_timers_fire_in_the_order_of_their_times() -> None:
    fired: list[str] = []

    async def wait(name: str, delay_s: float) -> None:
        await asyncio.sleep(delay_s)
        fired.append(f"{name}@{VirtualClock().wall_ms() % 100_000}")

    async def program() -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(wait("late", 2.0))
            tasks.create_task(wait("soon", 0.5))
            tasks.create_task(wait("at once", 0.0))

    run(program())
    assert fired == ["at once@0", "soon@500", "late@2000"]


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


def test_a_limit_leaves_the_timer_of_its_caller_as_it_was() -> None:
    former = signal.getitimer(signal.ITIMER_PROF)[0]
    run(asyncio.sleep(1.0))
    after = signal.getitimer(signal.ITIMER_PROF)[0]
    assert (after > 0.0) == (former > 0.0)
    assert after <= former


def test_a_timer_at_no_time_is_refused_and_one_at_infinity_is_never() -> None:
    async def program() -> None:
        loop = asyncio.get_running_loop()
        for no_time in (math.nan, -math.inf):
            with pytest.raises(ValueError, match="expected a time"):
                loop.call_at(no_time, pytest.fail)
        await asyncio.sleep(math.inf)

    with pytest.raises(VirtualTimeError, match="deadlock"):
        run(program())
