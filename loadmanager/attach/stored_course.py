"""The course of the balance over the last hour, stored for the next controller.

It is stored beside the prior settings. Only the live page shows it, so an error in storing or
reading it does not stop moves.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Final

from loadmanager.attach.observation import Observation
from loadmanager.attach.state import Part, State, StateUnusable
from loadmanager.core.balance_course import (
    BalancePoint,
    course_from_fields,
    course_to_json,
    last_hour,
)
from loadmanager.core.errors import MalformedContent
from loadmanager.core.fields import Fields, unpacked_object

_FORMAT: Final = 1
_MOST_KEPT: Final = 720
_MOST_POINTS: Final = 120
_STORE_MS: Final = 30_000
_LARGEST_BYTES: Final = 1_048_576


@dataclass(slots=True)
class Course:
    """The balance of each round within the last hour, thinned out."""

    _points: deque[BalancePoint] = field(default_factory=lambda: deque(maxlen=_MOST_KEPT))
    _stored_ms: int = 0

    def note(self, seen: Observation, at_ms: int) -> None:
        plan = seen.plan
        if plan is not None and plan.least_max_over_mean > 0:
            largest, bound = plan.max_over_mean, plan.least_max_over_mean
            gap = max(largest / bound - 1.0, 0.0)
            self.add(BalancePoint(at_ms=at_ms, gap=gap, largest=largest, bound=bound))

    def add(self, point: BalancePoint) -> None:
        """Add a point, which must be later than all others."""
        self._points.append(point)

    def points(self, now_ms: int) -> tuple[BalancePoint, ...]:
        return last_hour(self._points, now_ms, _MOST_POINTS)

    async def resume(self, state: State, now_ms: int) -> str:
        """Continue the stored course; return why it cannot be read, "" if it can."""
        try:
            text = await state.text(Part.COURSE)
            stored = () if text is None else _parsed(text, state.where(Part.COURSE))
        except StateUnusable as error:
            return f"the course of the balance starts over: {error}"
        # This controller may have led before, and then has points already.
        known = {one.at_ms: one for one in (*self._points, *last_hour(stored, now_ms, _MOST_KEPT))}
        self._points.clear()
        self._points.extend(known[at_ms] for at_ms in sorted(known))
        return ""

    async def store(self, state: State, now_ms: int) -> str:
        """Store the course, at most every 30 s; return why it cannot be stored, "" if it can."""
        if 0 <= now_ms - self._stored_ms < _STORE_MS:
            return ""
        self._stored_ms = now_ms
        document = {"format": _FORMAT, **course_to_json(self.points(now_ms))}
        try:
            await state.keep(Part.COURSE, json.dumps(document, separators=(",", ":")))
        except StateUnusable as error:
            return f"the course of the balance is not stored: {error}"
        return ""


def _parsed(text: str, where: str) -> tuple[BalancePoint, ...]:
    try:
        fields = Fields(where, unpacked_object(where, text.encode(), _LARGEST_BYTES))
        if fields.count("format") != _FORMAT:
            fields.refuse("format", str(_FORMAT))
        return course_from_fields(fields)
    except MalformedContent as error:
        raise StateUnusable(str(error)) from None
