import gc
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import reduce
from pathlib import Path
from types import FrameType
from typing import Any, Final
from urllib.parse import urlsplit

import click

Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def option(*names: str, **settings: Any) -> Decorator:
    """Declare an option as `click.option` does; its help shows the default, if there is one."""
    settings.setdefault("show_default", settings.get("default") not in {None, "", ()})
    return click.option(*names, **settings)


SET_OPTION: Final = option(
    "--set",
    "overrides",
    metavar="SECTION.KEY=VALUE",
    multiple=True,
    help="Set one key; overrides file and environment. May be given again.",
)
SEED_OPTION: Final = option(
    "--seed", default=0, type=click.IntRange(min=0), help="Seed of random choices."
)
JSON_OPTION: Final = option(
    "--json", "as_json", is_flag=True, help="Print JSON instead of a table."
)


def is_http_url(text: str, *, without_path: bool = False) -> bool:
    try:
        parts = urlsplit(text)
        sound = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return sound and not (without_path and (parts.path.strip("/") or parts.query))


def options_of(command: Callable[..., Any], options: Iterable[Decorator]) -> Callable[..., Any]:
    return reduce(lambda decorated, declare: declare(decorated), [*options][::-1], command)


_AGO: Final = re.compile(r"(\d{1,6})([smhdw])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def parse_moment(text: str, now: datetime) -> datetime:
    """Return the time in UTC; ``7d`` is seven days before ``now``. Raises `ValueError`."""
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
    try:
        return None if text is None else parse_moment(text, datetime.now(UTC))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from None


def print_json(value: object) -> None:
    click.echo(json.dumps(value, indent=2))


def read_input(file: Path) -> bytes:
    """Return the content of a file, of standard input for ``-``; raises `OSError`."""
    return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()


def write_output(file: Path, text: str) -> None:
    """Write a text to a file; if it cannot be written, the command ends with 2."""
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}; expected a file to write to") from None


@contextmanager
def ending(*errors: type[Exception], code: int = 1, prefix: str = "") -> Iterator[None]:
    try:
        yield
    except errors as error:
        click.echo(f"{prefix}{error}", err=True)
        raise click.exceptions.Exit(code) from None


def freeze_imported_objects() -> None:
    """Exclude all existing objects from later garbage collections.

    To be called when everything is imported and nothing runs yet. The objects of imports,
    some hundred thousand, live as long as the process; a collection that visits them
    takes 50 ms of CPU, and a process answers no request meanwhile. It happens after every few
    hundred hand-overs or reports, and was the longest pause of all.
    """
    gc.collect()
    gc.freeze()


INTERRUPTED: Final = 130
"""The exit code of a command that SIGINT ended."""


def stopped_by_signals() -> threading.Event:
    stopping = threading.Event()

    def stop(_signal: int, _frame: FrameType | None) -> None:
        stopping.set()

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    return stopping


def interrupted() -> click.exceptions.Exit:
    """Return what ends a command that caught Ctrl-C with `INTERRUPTED`.

    Python kills itself in the end if an interrupt came while a text was executed (as a dataclass
    that is defined does, in an import), though it was caught, unless another text is executed.
    """
    exec("")  # noqa: S102 - see above
    return click.exceptions.Exit(INTERRUPTED)
