"""Points in time as arguments: a date, a time, or a time span before now."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

_AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(text: str, now: datetime) -> datetime:
    """Return the time in UTC that ``text`` names; ``7d`` is seven days before ``now``.

    Raises:
        ValueError: it is neither.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        expected = f"{text!r}; expected a time such as 2026-11-01 or 2026-11-01T06:00Z, or 12h, 7d"
        raise ValueError(expected) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)


def moment_option(
    _context: click.Context, _option: click.Parameter, text: str | None
) -> datetime | None:
    """Return the time in UTC that an option names, None for none; a wrong one ends the command."""
    try:
        return None if text is None else parse_moment(text, datetime.now(UTC))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from None
