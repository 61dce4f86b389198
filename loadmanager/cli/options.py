import functools
import gc
import json
import re
import shutil
import signal
import string
import sys
import textwrap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import click

from loadmanager.telemetry.visible import VisibleStream

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]


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


def json_option(text: str = "Print JSON instead of a table.") -> Decorator:
    """Add ``--json`` to a command that yields its answer, and then prints it as text."""

    def decorate(command: Callable[..., Iterator[object]]) -> Callable[..., None]:
        @functools.wraps(command)
        def in_one_form(*, as_json: bool, **arguments: Any) -> None:
            steps = command(**arguments)
            answer = next(steps)
            if as_json:
                print_json(answer)
            else:
                next(steps, None)

        return option("--json", "as_json", is_flag=True, help=text)(in_one_form)

    return decorate


def options_of(command: Callable[..., Any], options: Iterable[Decorator]) -> Callable[..., Any]:
    return functools.reduce(
        lambda decorated, declare: declare(decorated), [*options][::-1], command
    )


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
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopping.set())
    return stopping


def interrupted() -> click.exceptions.Exit:
    """Return what ends a command that caught Ctrl-C with `INTERRUPTED`.

    Python kills itself in the end if an interrupt came while a text was executed (as a dataclass
    that is defined does, in an import), though it was caught, unless another text is executed.
    """
    exec("")  # noqa: S102 - see above
    return click.exceptions.Exit(INTERRUPTED)


HELP_OPTIONS = ("-h", "--help")


def _with_short_help(command: click.Command) -> None:
    """Give a command and all below it ``-h``, also where one is called by itself.

    click makes a command's help option once, by whatever context comes first.
    """
    command.context_settings.setdefault("help_option_names", [*HELP_OPTIONS])
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _with_short_help(inner)


class SectionedGroup(click.Group):
    """A group whose help lists commands by section, and cuts no sentence short.

    Commands that no section names are listed under "Commands". ``removed`` says for each command
    of a former version what to use instead.
    """

    removed: Mapping[str, str] = MappingProxyType({})
    sections: Mapping[str, tuple[str, ...]] = MappingProxyType({})

    def main(self, *arguments: Any, **settings: Any) -> Any:
        with redirect_stdout(VisibleStream(sys.stdout)), redirect_stderr(VisibleStream(sys.stderr)):
            return super().main(*arguments, **settings)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Name what replaces a removed command; else see `click.Group`."""
        instead = self.removed.get(args[0])
        if instead is not None:
            ctx.fail(f"command '{args[0]}' was removed; use {instead}")
        return super().resolve_command(ctx, args)

    def add_section(self, title: str, *commands: click.Command) -> None:
        for command in commands:
            self.add_command(command)
            _with_short_help(command)
        self.sections = {**self.sections, title: tuple(one.name or "" for one in commands)}

    def in_sections(self) -> Mapping[str, tuple[str, ...]]:
        placed = {name for names in self.sections.values() for name in names}
        rest = tuple(sorted(self.commands.keys() - placed))
        return {**self.sections, "Commands": rest} if rest else self.sections

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max((len(name) for name in self.list_commands(ctx)), default=0)
        for title, names in self.in_sections().items():
            helps = [(self.commands[name].help or "").partition("\n\n")[0] for name in names]
            rows = [
                (name.ljust(widest), " ".join(text.split()))
                for name, text in zip(names, helps, strict=True)
            ]
            with formatter.section(title):
                formatter.write_dl(rows)


class SectionedCommand(click.Command):
    """A command whose help lists options by section; ``sections`` has the first option of each."""

    sections: Mapping[str, str] = MappingProxyType({})

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        title, rows = "Options", dict[str, list[tuple[str, str]]]()
        for parameter in self.get_params(ctx):
            title = self.sections.get(parameter.name or "", title)
            if (row := parameter.get_help_record(ctx)) is not None:
                rows.setdefault(title, []).append(row)
        for title, listed in rows.items():
            with formatter.section(title):
                formatter.write_dl(listed)


_GAP: Final = "  "
_LEAST_WRAPPED: Final = 24
"""The least width of a wrapped text beside the other columns; else it follows below them."""


def terminal_width() -> int | None:
    """Return the columns of the terminal that is written to, None for a file or a pipe."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def fitted(line: str, width: int | None) -> str:
    """Return a line of text, wrapped between words if it is longer than ``width``."""
    if width is None or len(line) <= width:
        return line
    indent = line[: len(line) - len(line.lstrip(" "))]
    return "\n".join(_wrapped(line, width, "", f"{indent}  "))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table, or nothing without rows; a column of which a ``>`` ends the name is right."""
    cells = [[str(cell) for cell in row] for row in rows]
    if cells:
        click.echo("\n".join(["", title, *plain_lines(columns, cells, terminal_width())]))


class _Cells(string.Formatter):
    """Formats values; None, which stands for what is not known, is a dash."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return "-" if value is None else super().format_field(value, format_spec)


Cell = str | Callable[[Mapping[str, Any]], object]
"""A format of a record's values, ``{msgsPerS:,.0f}``, or a function of the record."""

Columns = Mapping[str, Cell]
"""The cells of a table by the names of their columns, as in `print_table`."""


def print_records(title: str, columns: Columns, records: Iterable[Mapping[str, Any]]) -> None:
    """Print a table of JSON objects."""
    cells = _Cells()
    rows = [
        [
            cells.vformat(cell, (), record) if isinstance(cell, str) else cell(record)
            for cell in columns.values()
        ]
        for record in records
    ]
    print_table(title, list(columns), rows)


def utc(wall_ms: int) -> str:
    """Return a time in milliseconds since 1970 as text, in UTC."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def plain_lines(
    columns: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None
) -> list[str]:
    """Return a table in aligned columns, two blanks apart, without lines.

    Columns that do not fit into ``width`` follow below each row, with their names. No
    name and no figure is broken; a text in the last column is wrapped.
    """
    right = [name.endswith(">") for name in columns]
    names = [name.removesuffix(">") for name in columns]
    widths = [max(map(len, cells)) for cells in zip(names, *rows, strict=True)]
    ends = [*accumulate(cells_width + len(_GAP) for cells_width in widths)]
    fitting = len(columns)
    if width is not None:
        fitting = max(sum(end - len(_GAP) <= width for end in ends), 1)
    indent = " " * ends[fitting - 1]
    left = 0 if width is None else width - len(indent)
    wrapped = fitting == len(columns) - 1 and not right[-1] and left >= _LEAST_WRAPPED
    lines: list[str] = []
    for row in [names, *rows]:
        beside = textwrap.wrap(row[-1], left) if wrapped else []
        cells = [
            cell.rjust(cells_width) if to_the_right else cell.ljust(cells_width)
            for cell, cells_width, to_the_right in zip(
                row[:fitting], widths, right[:fitting], strict=False
            )
        ]
        lines.append(_GAP.join([*cells, *beside[:1]]).rstrip())
        lines += [f"{indent}{more}" for more in beside[1:]]
        if width is not None and not wrapped and row is not names:
            for name, cell in zip(names[fitting:], row[fitting:], strict=True):
                text = f"{name}: {cell}" if name else cell
                lines += _wrapped(text, width, "    ", "      ") if cell else ()
    return lines


def _wrapped(line: str, width: int, first: str, more: str) -> list[str]:
    wrapper = textwrap.TextWrapper(width, first, more)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(line)


def optimality_line(found: Mapping[str, Any] | None) -> str:
    """Return the line for the leader's answer; None if nothing is known yet."""
    if found is None:
        return "fullest broker: not known yet"
    policies = ""
    if found["boundWithinPolicies"] > found["bound"]:
        policies = f", within policies {found['boundWithinPolicies']:.1%}"
    bound = f"no assignment below {found['bound']:.1%}{policies}"
    return f"fullest broker {found['largest']:.1%}; {bound}; gap {found['gap']:.0%}"
