import asyncio
import time

import pytest

from loadmanager.faults.virtual_loop import START_S, VirtualTimeError
from loadmanager.faults.virtual_time import VirtualClock, run


def test_an_hour_passes_at_once() -> None:
    async def program() -> float:
        await VirtualClock().sleep(3600.0)
        return VirtualClock().monotonic_s()

    started_s = time.monotonic()
    assert run(program()) == pytest.approx(START_S + 3600.0)
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

    with pytest.raises(VirtualTimeError, match="not done after 61 s"):
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
