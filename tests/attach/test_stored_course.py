"""How the balance went outlives the controller that saw it: the page of the next one shows it."""

import json
import re
import time
from pathlib import Path

import pytest
from attach_process import attached
from fake_pulsar import FakePulsar

from loadmanager.core.bounds import HOUR_MS
from loadmanager.core.errors import LoadManagerError
from loadmanager.core.optimality import BalancePoint
from loadmanager.pulsar.state import Course, Part, State

NOW_MS = 1_800_000_000_000


def point(at_ms: int, gap: float = 0.25) -> BalancePoint:
    return BalancePoint(at_ms=at_ms, gap=gap, largest=1.0 + gap, bound=1.0)


async def test_the_next_controller_goes_on_with_the_last_hour(state: State) -> None:
    former = Course()
    await former.resume(state, NOW_MS)
    for ago_ms in (HOUR_MS + 60_000, 120_000, 60_000):
        former.add(point(NOW_MS - ago_ms))
    await former.store(state, NOW_MS)
    following = Course()
    await following.resume(state, NOW_MS + 30_000)
    following.add(point(NOW_MS + 30_000, 0.125))
    assert following.points(NOW_MS + 30_000) == (
        point(NOW_MS - 120_000),
        point(NOW_MS - 60_000),
        point(NOW_MS + 30_000, 0.125),
    )


async def test_one_that_leads_again_has_its_own_points_and_those_of_the_other(state: State) -> None:
    first, other = Course(), Course()
    first.add(point(NOW_MS, 0.5))
    await first.store(state, NOW_MS)
    await other.resume(state, NOW_MS + 1)
    other.add(point(NOW_MS + 60_000, 0.25))
    await other.store(state, NOW_MS + 60_000)
    await first.resume(state, NOW_MS + 60_001)
    assert [one.gap for one in first.points(NOW_MS + 60_001)] == [0.5, 0.25]


async def test_it_is_stored_twice_a_minute_at_most_and_stays_small(state: State) -> None:
    course = Course()
    for second in range(720):
        course.add(point(NOW_MS - 5000 * second))
    await course.store(state, NOW_MS)
    text = await state.text(Part.COURSE)
    assert text is not None
    assert len(json.loads(text)["atMs"]) <= 120
    assert len(text) < 8192
    course.add(point(NOW_MS + 1000, 0.75))
    await course.store(state, NOW_MS + 29_000)
    assert await state.text(Part.COURSE) == text
    await course.store(state, NOW_MS + 30_000)
    assert "0.75" in (await state.text(Part.COURSE) or "")


@pytest.mark.parametrize("text", ["", "[]", '{"format":2}', '{"format":1,"atMs":[1],"gap":[]}'])
async def test_what_is_none_is_reported_and_begins_anew(state: State, text: str) -> None:
    await state.keep(Part.COURSE, text)
    course = Course()
    with pytest.raises(LoadManagerError, match=re.escape(state.where(Part.COURSE))):
        await course.resume(state, NOW_MS)
    course.add(point(NOW_MS))
    await course.store(state, NOW_MS)
    await Course().resume(state, NOW_MS)


def test_the_command_goes_on_with_the_course_and_moves_although_it_cannot_be_stored(
    pulsar: FakePulsar, tmp_path: Path
) -> None:
    where = ("--pulsar", pulsar.url, "--state-dir", str(tmp_path))
    options = (*where, "--interval", "0.2", "--balance", "--settle", "0", "--once")
    earlier_ms = time.time_ns() // 1_000_000 - 600_000
    stored = {"format": 1, "atMs": [earlier_ms], "gap": [0.5], "largest": [1.5], "bound": [1.0]}
    file = tmp_path / "attach-research.course"
    file.write_text(json.dumps(stored))
    with attached(*options) as process:
        assert process.wait() == 0
    course = json.loads(file.read_text())
    assert (len(course["atMs"]), course["atMs"][0]) == (2, earlier_ms)
    assert len(pulsar.unloads) == 5
    (tmp_path / "attach-research.course.new").mkdir()
    with attached(*options) as process:
        process.until("the course of the balance is not stored: ")
        assert process.wait() == 0
