import re
from dataclasses import dataclass
from typing import Final

from loadmanager.core.errors import LoadManagerError

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAY: Final = "|".join(_DAYS)
_TEXT: Final = re.compile(
    rf"(?:(?P<first>{_DAY})(?:-(?P<last>{_DAY}))? )?"
    r"(?P<from_h>\d\d):(?P<from_m>[0-5]\d)-(?P<to_h>\d\d):(?P<to_m>[0-5]\d)",
    re.ASCII,
)
_DAY_MINUTES: Final = 24 * 60
_WEEK_DAYS: Final = 7


class InvalidWindow(LoadManagerError, ValueError):
    """A text that does not denote a window."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveWindow:
    """A daily window on some days (0 is Monday); past midnight if it ends before it begins."""

    text: str
    days: frozenset[int]
    from_minute: int
    to_minute: int

    def holds(self, day: int, minute: int) -> bool:
        """Return whether the window is open at a minute (0 to 1439) of a day (0 is Monday)."""
        if self.from_minute < self.to_minute:
            return day in self.days and self.from_minute <= minute < self.to_minute
        before = (day - 1) % _WEEK_DAYS
        return (day in self.days and minute >= self.from_minute) or (
            before in self.days and minute < self.to_minute
        )


def parse_window(text: str) -> MoveWindow:
    """Raises `InvalidWindow`: the text is not a window."""
    found = _TEXT.fullmatch(" ".join(text.lower().split()))
    if found is None:
        raise _invalid(text)
    begin = int(found["from_h"]) * 60 + int(found["from_m"])
    end = int(found["to_h"]) * 60 + int(found["to_m"])
    if begin >= _DAY_MINUTES or end > _DAY_MINUTES:
        raise _invalid(text)
    days = frozenset(range(_WEEK_DAYS))
    if found["first"]:
        first = _DAYS.index(found["first"])
        last = _DAYS.index(found["last"] or found["first"])
        count = (last - first) % _WEEK_DAYS + 1
        days = frozenset((first + number) % _WEEK_DAYS for number in range(count))
    return MoveWindow(text=text, days=days, from_minute=begin, to_minute=end)


def _invalid(text: str) -> InvalidWindow:
    return InvalidWindow(
        f"{text[:60]!r}: expected a time such as 'Mon-Fri 02:00-05:00' or '22:00-04:30'"
    )
