import logging
import sys
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TextIO, cast

import structlog

from loadmanager.telemetry.visible import beneath, visible

_HIDDEN: Final = "********"

# Ends of field names whose values are never logged. A fencing token is no secret.
_SECRET_ENDS: Final = ("password", "secret", "authorization", "credentials", "private_key")

# The lowest level at which each library may log. At debug level kazoo logs each request,
# including the password of the one that authenticates.
_LIBRARY_LEVELS: Final[Mapping[str, int]] = {
    "kazoo": logging.INFO,
    "aiohttp.access": logging.WARNING,
    "asyncio": logging.INFO,
}


class _OurHandler(logging.StreamHandler[TextIO]):
    """The type of the handler installed here, which a second call replaces."""


def configure_logging(format: str, level: str, stream: TextIO) -> None:  # noqa: A002 - the key's name
    """Log to ``stream``, one event per line; ``auto`` is for people if that is a terminal.

    Times are ISO 8601 in UTC. Tracebacks are plain text without the values of local
    variables, which may contain passwords.
    """
    stream = beneath(stream)
    console = format == "console" or (format == "auto" and stream.isatty())
    least = logging.getLevelNamesMapping()[level.upper()]
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        hide_secrets,
    ]
    rendering = _rendering_processors(console=console, colors=console and stream.isatty())
    lossy = cast("TextIO", _LossyStream(stream, [*shared, *rendering]))
    structlog.configure(
        processors=[*shared, *rendering],
        wrapper_class=structlog.make_filtering_bound_logger(least),
        logger_factory=structlog.WriteLoggerFactory(lossy),
        # Loggers are made when modules are imported, before this is called.
        cache_logger_on_first_use=False,
    )
    handler = _OurHandler(lossy)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _OurHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    _set_levels(least)
    logging.captureWarnings(capture=True)


def change_level(level: str) -> None:
    least = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(least))
    _set_levels(least)


class _LossyStream:
    """A stream that drops lines that cannot be written, for example on a full disk.

    If a failed log line ended the sidecar, its broker would lose its bundles.
    """

    def __init__(self, stream: TextIO, processors: Sequence[structlog.typing.Processor]) -> None:
        self._stream = stream
        self._processors = processors
        self._lost = 0

    def write(self, text: str) -> None:
        """Write a line, or count it as lost; report lost lines with the next one written."""
        try:
            self._stream.write(f"{self._notice()}{text}")
            self._stream.flush()
        except OSError:
            self._lost += 1
        else:
            self._lost = 0

    def _notice(self) -> str:
        # Not through a logger: the caller holds the lock of all of them.
        if not self._lost:
            return ""
        event: Any = {"event": "log.lines.lost", "count": self._lost}
        for processor in self._processors:
            event = processor(None, "warning", event)
        return f"{event}\n"

    def flush(self) -> None: ...


def _set_levels(least: int) -> None:
    logging.getLogger().setLevel(least)
    for name, library_least in _LIBRARY_LEVELS.items():
        logging.getLogger(name).setLevel(max(least, library_least))


def _rendering_processors(*, console: bool, colors: bool) -> Sequence[structlog.typing.Processor]:
    if console:
        # The renderer's own choice, where `rich` is installed, prints local variables.
        plain = structlog.dev.plain_traceback
        rendered = structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain)
        trace = structlog.processors.format_exc_info
        return [trace, lambda _logger, _method, event: visible(event), rendered]
    return [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]


def hide_secrets(
    logger: Any, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """Replace the value of each field whose name denotes a secret, at any depth."""
    del logger, method
    for key, value in event.items():
        if key.lower().endswith(_SECRET_ENDS):
            event[key] = _HIDDEN
        elif isinstance(value, Mapping):
            event[key] = hide_secrets(None, "", dict(value))
    return event


@contextmanager
def warnings_alone() -> Iterator[None]:
    """Let the writer log what goes wrong, to standard error: the other is for the figures."""
    before = structlog.get_config()
    lossy = _LossyStream(sys.stderr, before["processors"])
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
        logger_factory=structlog.WriteLoggerFactory(cast("TextIO", lossy)),
    )
    try:
        yield
    finally:
        structlog.configure(**before)
